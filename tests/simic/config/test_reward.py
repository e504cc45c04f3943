"""Configs of rewards: what cannot be meant or does not fit together is refused, and the learner has to agree."""

import math
from dataclasses import replace
from typing import Any

import pytest

from esper.leyline import InputError
from esper.simic.config import LearnerConfig
from esper.simic.config.reward import (
    ChecksConfig,
    ContributionConfig,
    LossConfig,
    RewardConfig,
    RewardFamily,
    ShapingConfig,
    SparseConfig,
    check_learner,
)

FACTS = LossConfig(best_loss=0.3, worst_loss=2.3, baseline_loss=2.3, typical_delta=0.1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (RewardConfig, "scale"),
        (RewardConfig, "gamma"),
        (ShapingConfig, "weight"),
        (ChecksConfig, "penalty"),
        (ContributionConfig, "weight"),
        (ContributionConfig, "holding_cap"),
        (SparseConfig, "sparse_reward_scale"),
    ],
)
def test_configs_refuse_numbers_that_cannot_be_meant(kind: Any, name: str, value: float) -> None:
    with pytest.raises(InputError, match=rf"{kind.__name__}\.{name}"):
        kind(**{name: value})


def test_configs_refuse_what_does_not_fit_together() -> None:
    with pytest.raises(InputError, match="gamma"):
        RewardConfig(gamma=1.5)
    with pytest.raises(InputError, match="loss family"):
        RewardConfig(family=RewardFamily.LOSS)
    with pytest.raises(InputError, match="stages"):
        ShapingConfig(stages=(1.0, 2.0))
    with pytest.raises(InputError, match="stages"):
        ShapingConfig(stages=(math.nan,) * 8)
    with pytest.raises(InputError, match="worst_loss"):
        replace(FACTS, worst_loss=0.1)
    with pytest.raises(InputError, match="typical_delta"):
        replace(FACTS, typical_delta=0.0)
    with pytest.raises(InputError, match="family"):
        RewardConfig(family="objective")  # type: ignore[arg-type]


def test_facts_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InputError, match=r"baseline_loss must be at most worst_loss = 2.*; got 3"):
        LossConfig(best_loss=0.0, worst_loss=2.0, baseline_loss=3.0, typical_delta=0.1)


def test_the_proxy_weight_is_a_third_or_refused() -> None:
    assert ContributionConfig(weight=3.0, proxy_weight=1.0).proxy == 1.0
    assert ContributionConfig().weight / ContributionConfig().proxy == pytest.approx(3.0)
    with pytest.raises(InputError, match="proxy_weight"):
        ContributionConfig(weight=3.0, proxy_weight=2.0)


@pytest.mark.parametrize("horizon_is_terminal", [True, False])
def test_reward_and_learner_must_agree_on_discount_and_end(horizon_is_terminal: bool) -> None:
    reward = RewardConfig(gamma=0.9, horizon_is_terminal=horizon_is_terminal)
    check_learner(reward, 0.9, horizon_is_terminal)
    check_learner(RewardConfig(), LearnerConfig().gamma, LearnerConfig().horizon_is_terminal)
    with pytest.raises(InputError, match=r"reward gamma 0\.9 and PPO gamma 1\.0"):
        check_learner(reward, 1.0, horizon_is_terminal)
    told = f"is {horizon_is_terminal} for the reward and {not horizon_is_terminal} for PPO"
    with pytest.raises(InputError, match=told):
        check_learner(reward, 0.9, not horizon_is_terminal)
