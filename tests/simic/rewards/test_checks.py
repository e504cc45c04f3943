"""Checks against seeds that game their credit, live in every family."""

from typing import Any

import pytest
import torch

from esper.kasmina import SlotTable
from esper.leyline import EventType, Stage
from esper.nissa import Hub, MemorySink
from esper.simic.config.reward import ChecksConfig, RewardConfig, RewardFamily
from esper.simic.rewards import check_seeds, emit_flags, loss_config, make_reward
from esper.tolaria import Outcome
from tests.simic.lives import make_outcome, make_situation

EVERY_FAMILY = [RewardConfig(family=family, loss=loss_config("cifar10")) for family in RewardFamily]


def two_hosts(contribution: float, improvement: float, **overrides: Any) -> Outcome:
    """Host 0 has nothing; slot 1 of host 1 holds the seed; points."""
    table = SlotTable.empty(2, 2)
    table.stage[1, 1], table.alpha[1, 1] = Stage.HOLDING.value, 1.0
    table.contribution[1, 1], table.improvement[1, 1] = contribution / 100, improvement / 100
    return make_outcome(make_situation(2, 2, table=table), **overrides)


@pytest.mark.parametrize("config", EVERY_FAMILY, ids=lambda config: config.family)
@pytest.mark.parametrize(
    ("contribution", "improvement", "ransomware", "hacking"),
    [(5, -2, True, False), (5, 6, False, False), (5, 0.5, False, True), (0.5, -2, False, False), (5, 0, False, False)],
)
def test_suspicious_seeds_are_flagged_in_the_path_of_every_reward(
    config: RewardConfig, contribution: float, improvement: float, ransomware: bool, hacking: bool
) -> None:
    flags = make_reward(config)(two_hosts(contribution, improvement)).flags
    assert flags.ransomware.tolist() == [[False, False], [False, ransomware]]
    assert flags.hacking.tolist() == [[False, False], [False, hacking]]


def test_thresholds_are_configurable() -> None:
    outcome = two_hosts(5, 2)
    assert not check_seeds(outcome, ChecksConfig()).any.any()
    assert check_seeds(outcome, ChecksConfig(hacking_ratio=2.0)).hacking[1, 1]
    outcome = two_hosts(5, -2)
    assert not check_seeds(outcome, ChecksConfig(ransomware_harm=3.0)).any.any()
    assert not check_seeds(outcome, ChecksConfig(ransomware_contribution=6.0)).any.any()


@pytest.mark.parametrize("improvement", [0.0, 1e-12, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("config", EVERY_FAMILY, ids=lambda config: config.family)
def test_no_ratio_is_formed_without_an_improvement(config: RewardConfig, improvement: float) -> None:
    fragile = RewardConfig(
        family=config.family, loss=config.loss, checks=ChecksConfig(improvement_safe_threshold=0.0, penalty=1.0)
    )
    breakdown = make_reward(fragile)(two_hosts(5, improvement))
    assert breakdown.total.isfinite().all()
    assert not breakdown.flags.hacking.any()


def test_a_rolled_back_epoch_accuses_nobody() -> None:
    outcome = two_hosts(5, -2, panicked=torch.tensor([False, True]))
    assert not make_reward()(outcome).flags.any.any()


def test_a_penalty_is_charged_for_each_flagged_seed_once_it_is_set() -> None:
    outcome = two_hosts(5, -2)
    assert make_reward()(outcome).components["gaming"].tolist() == [0.0, 0.0]
    charged = make_reward(RewardConfig(checks=ChecksConfig(penalty=0.25)))(outcome)
    assert charged.components["gaming"].tolist() == [0.0, -0.25]


def test_flagged_seeds_become_events_and_others_do_not() -> None:
    memory = MemorySink()
    for contribution, improvement in ((5, -2), (5, 0.5), (5, 6)):
        outcome = two_hosts(contribution, improvement)
        emit_flags(make_reward()(outcome).flags, outcome, Hub([memory]).bind(first_host=10))
    ransom, hacking = memory.events
    assert ransom.event_type is EventType.RANSOMWARE_SUSPECTED
    assert (ransom.env_id, ransom.slot_id, ransom.payload["ratio"]) == (11, "r0c1", None)
    assert ransom.payload["total_improvement"] == pytest.approx(-2.0)
    assert hacking.event_type is EventType.REWARD_HACKING_SUSPECTED
    assert hacking.payload["ratio"] == pytest.approx(10.0)
