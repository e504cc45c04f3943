"""The loss family: an episode is paid the fall of the loss, whatever happened on the way, and nothing can be farmed."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import esper
from esper.kasmina import SlotTable
from esper.leyline import InputError, Stage
from esper.simic.config.reward import LossConfig, RewardConfig, RewardFamily
from esper.simic.rewards import LOSS_CONFIGS, loss_config, make_reward
from esper.tasks import find_task
from esper.tolaria import Situation
from tests.simic.lives import HOST_PARAMS, last_steps, make_outcome, make_situation, random_life
from tests.worlds import tiny_task

FACTS = loss_config("cifar10")
REWARD = make_reward(RewardConfig(family=RewardFamily.LOSS, loss=FACTS))
LOSSES = st.floats(0.0, 100.0) | st.sampled_from([math.nan, math.inf])


def at_loss(*losses: float, situation: Situation | None = None) -> Situation:
    """Hosts with these validation losses."""
    situation = situation or make_situation(len(losses))
    return replace(situation, signals=replace(situation.signals, val_loss=torch.tensor(losses, dtype=torch.float64)))


def paid_along(losses: list[float]) -> float:
    """What a host is paid whose losses are these, one after another; each step is taken by a host of its own."""
    before, after = at_loss(*losses[:-1]), at_loss(*losses[1:])
    return float(REWARD(make_outcome(before, after)).total.sum())


@settings(max_examples=200)
@given(losses=st.lists(LOSSES, min_size=1, max_size=12))
def test_a_loss_that_returns_to_where_it_was_has_paid_nothing(losses: list[float]) -> None:
    assert paid_along([*losses, losses[0]]) == pytest.approx(0.0, abs=1e-9)


def test_rising_at_once_and_falling_in_small_steps_earns_nothing() -> None:
    assert paid_along([0.5, 2.5, 2.0, 1.5, 1.0, 0.5]) == pytest.approx(0.0, abs=1e-9)


@settings(max_examples=200)
@given(ways=st.lists(st.lists(LOSSES, max_size=6), min_size=2, max_size=2), end=st.floats(0.0, 2.0))
def test_the_way_to_a_loss_does_not_matter_and_a_lower_one_is_better(ways: list[list[float]], end: float) -> None:
    first, second = (paid_along([math.nan, *way, end]) for way in ways)
    assert first == pytest.approx(second, abs=1e-9)
    assert paid_along([math.nan, *ways[0], end + 0.1]) == pytest.approx(first - 1.0, abs=1e-9)


@settings(max_examples=50)
@given(seed=st.integers(0, 10**6), length=st.integers(1, 14), panic_rate=st.sampled_from([0.0, 0.3]))
def test_an_episode_is_paid_the_fall_to_the_committed_network(seed: int, length: int, panic_rate: float) -> None:
    outcomes = random_life(seed, hosts=3, length=length, panic_rate=panic_rate)
    alive = torch.arange(length)[:, None] <= last_steps(outcomes)
    sums = (torch.stack([REWARD(outcome).components["loss_drop"] for outcome in outcomes]) * alive).sum(0)
    for host in range(3):
        final = float(outcomes[int(last_steps(outcomes)[host])].final_loss[host])
        fall = FACTS.baseline_loss - min(final, FACTS.worst_loss)
        assert float(sums[host]) == pytest.approx(fall / FACTS.typical_delta, abs=1e-5)


def test_falls_are_paid_in_typical_deltas() -> None:
    assert paid_along([math.nan, FACTS.baseline_loss - 2 * FACTS.typical_delta]) == pytest.approx(2.0)
    assert paid_along([1.0, 0.0]) == pytest.approx(1.0 / FACTS.typical_delta)
    assert paid_along([FACTS.worst_loss, math.inf]) == 0.0


def test_what_was_not_kept_is_not_paid() -> None:
    before, seen = at_loss(1.0), at_loss(0.4)
    outcome = make_outcome(
        before,
        seen,
        truncated=torch.tensor([True]),
        final_loss=torch.tensor([0.9]),
    )
    assert float(REWARD(outcome).components["loss_drop"]) == pytest.approx(0.1 / FACTS.typical_delta, rel=1e-6)


def test_the_rent_is_charged_in_typical_deltas_of_a_whole_quality() -> None:
    facts = LossConfig(best_loss=1.0, worst_loss=4.0, baseline_loss=4.0, typical_delta=0.5)
    table = SlotTable.empty(1, 2)
    table.stage[0, 0], table.alpha[0, 0], table.params[0, 0] = Stage.HOLDING.value, 1.0, 400
    before = at_loss(2.0, situation=make_situation(1, 2, price=torch.tensor([0.1])))
    outcome = make_outcome(before, replace(before, table=table))
    terms = make_reward(RewardConfig(family=RewardFamily.LOSS, loss=facts))(outcome).components
    assert float(terms["rent"]) == pytest.approx(-(0.1 * 400 / HOST_PARAMS) * (4.0 - 1.0) / 0.5)
    assert float(terms["loss_drop"]) == 0.0


def test_any_task_can_have_a_loss_reward_from_its_facts() -> None:
    made_up = LossConfig(best_loss=0.0, worst_loss=4.0, baseline_loss=4.0, typical_delta=0.5)
    assert loss_config("made-up", made_up) is made_up
    assert made_up.deltas_per_quality == 8.0
    assert LossConfig.of_classes(10).baseline_loss == pytest.approx(math.log(10))
    with pytest.raises(InputError, match=r"made-up.*cifar10, tinystories.*facts"):
        loss_config("made-up")


@pytest.mark.parametrize("task", LOSS_CONFIGS)
def test_known_facts_start_from_the_guess_of_the_task(task: str) -> None:
    facts = loss_config(task)
    assert facts.baseline_loss == facts.worst_loss == find_task(task).guess_loss
    assert 0 < facts.best_loss < facts.worst_loss


def test_a_real_host_is_paid_the_fall_of_its_loss() -> None:
    facts = LossConfig.of_classes(3)
    reward = RewardConfig(family=RewardFamily.LOSS, loss=facts)
    env = esper.make_env(tiny_task(), envs=2, episode_length=3, executor="loop", reward=reward)
    env.reset()
    paid = torch.zeros(2, dtype=torch.float64)
    for _ in range(3):
        step = env.step(torch.zeros(2, 4, dtype=torch.int64))
        paid += step.rewards
    outcome = step.info.outcome
    assert torch.equal(outcome.final_loss, outcome.after.signals.val_loss)  # nothing was grown, so nothing was dropped
    expected = (facts.baseline_loss - outcome.final_loss.double().clamp(max=facts.worst_loss)) / facts.typical_delta
    torch.testing.assert_close(paid, expected)
