"""What holds of every reward: parts add up and everything is finite."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.leyline import Op, Stage
from esper.simic.config.reward import (
    ChecksConfig,
    RewardConfig,
    RewardFamily,
    ShapingConfig,
)
from esper.simic.rewards import REWARD_LIMIT, RewardBreakdown, check_seeds, loss_config, make_reward
from tests.simic.lives import make_outcome, make_situation, random_life

FACTS = loss_config("tinystories")
CONFIGS = [
    RewardConfig(
        family=family,
        loss=FACTS,
        scale=3.0,
        governor_penalty=0.5,
        shaping=ShapingConfig(weight=0.5),
        checks=ChecksConfig(penalty=0.1),
    )
    for family in RewardFamily
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.family)
def test_components_add_up_to_the_total(config: RewardConfig) -> None:
    reward = make_reward(config)
    for outcome in random_life(4, hosts=8, panic_rate=0.1):
        breakdown = reward(outcome)
        assert breakdown.total.shape == (8,)
        torch.testing.assert_close(sum(breakdown.components.values()), breakdown.total, rtol=0, atol=1e-6)
        ratio = breakdown.shaped_reward_ratio
        assert ((ratio >= 0) & (ratio <= 1)).all()


def test_the_family_is_chosen_by_the_config() -> None:
    outcome = random_life(0, length=1)[0]
    own = {"quality", "contribution", "sparse", "loss_drop"}
    chosen = [own & set(make_reward(config)(outcome).components) for config in CONFIGS]
    assert chosen == [{"quality"}, {"contribution"}, {"sparse"}, {"loss_drop"}]


VALUES = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e-12, -1e-12, 1.0, -1.0, 1e6, -1e6, 3e38, -3e38])


@settings(max_examples=200)
@given(
    config=st.sampled_from(CONFIGS),
    seed=st.integers(0, 10**6),
    values=st.lists(VALUES | st.floats(width=32), min_size=4, max_size=4),
)
def test_rewards_are_finite_whatever_was_measured(config: RewardConfig, seed: int, values: list[float]) -> None:
    generator = torch.Generator().manual_seed(seed)

    def spoil(column: torch.Tensor) -> None:
        if column.is_floating_point():
            chosen = torch.randint(len(values), column.shape, generator=generator)
            column.copy_(torch.tensor(values)[chosen])

    def situation() -> Any:
        made = make_situation(4, 2)
        made.table.stage[:] = torch.randint(len(Stage), (4, 2), generator=generator)
        made.table.epochs_in_stage[:] = torch.randint(30, (4, 2), generator=generator)
        for table in (made.table, made.signals):
            for name in type(table).__dataclass_fields__:
                spoil(getattr(table, name))
        spoil(made.price)
        return made

    ends = torch.rand(3, 4, generator=generator) < 0.3
    outcome = make_outcome(
        situation(),
        situation(),
        actions=torch.tensor([[0, 0, 0, op] for op in Op]),
        panicked=ends[0],
        terminated=ends[1],
        truncated=ends[2] & ~ends[1],
    )
    spoil(outcome.final_score)
    spoil(outcome.final_loss)
    breakdown = make_reward(config)(outcome)
    for component in breakdown.components.values():
        assert component.isfinite().all()
        assert (component.abs() <= REWARD_LIMIT).all()
    assert breakdown.total.isfinite().all()
    assert ((breakdown.shaped_reward_ratio >= 0) & (breakdown.shaped_reward_ratio <= 1)).all()


def breakdown_of(**terms: float) -> RewardBreakdown:
    flags = check_seeds(make_outcome(make_situation(1)), ChecksConfig())
    return RewardBreakdown.of({name: torch.tensor([value]) for name, value in terms.items()}, 1.0, flags)


def test_the_shaped_share_is_that_of_sizes_not_of_the_sum() -> None:
    cancelled = breakdown_of(quality=1.0, shaping=-1.0)
    assert float(cancelled.total) == 0.0
    assert float(cancelled.shaped_reward_ratio) == 0.5
    assert float(breakdown_of(quality=3.0, cull_shaping=0.5, shaping=-0.5).shaped_reward_ratio) == 0.25
    assert float(breakdown_of(quality=0.0, shaping=1e-12).shaped_reward_ratio) == 0.0
