"""Nothing that comes in makes the parameters non-finite; what was left out is counted."""

import math

import pytest
import torch

from esper.leyline import InputError, InvalidStateMachineError, SlotConfig
from esper.simic.agent import PPOAgent
from esper_lab.player import Player
from tests.simic.builders import RandomWorld, agent_with_round, make_agent, parameters_of


class Levels:
    """A telemetry configuration that collects one level."""

    def __init__(self, level: str) -> None:
        self._level = level

    def should_collect(self, level: str) -> bool:
        return level == self._level


def poison_log_probs(agent: PPOAgent, value: float) -> None:
    agent.buffer.log_probs[0, 3, agent.spec.decider_index] = value


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_reward_leaves_the_parameters_finite_and_later_rounds_intact(bad: float) -> None:
    agent = agent_with_round()
    agent.buffer.rewards[1, 4] = bad
    metrics = agent.update()
    assert metrics["skipped_steps"] == 1
    assert metrics["optimizer_steps"] == 0
    assert metrics["has_numerical_issue"]
    assert math.isfinite(metrics["return_scale"])
    assert parameters_of(agent).isfinite().all()
    world = RandomWorld()
    Player(agent, world).fill_buffer()
    assert agent.update()["optimizer_steps"] == 1


def test_a_bad_observation_costs_only_the_minibatch_that_holds_it() -> None:
    agent = agent_with_round(num_minibatches=4, target_kl=None)
    agent.buffer.dones[:] = False
    agent.buffer.obs[2, 5] = math.nan
    metrics = agent.update()
    assert metrics["skipped_steps"] == 1
    assert metrics["optimizer_steps"] == 3
    assert parameters_of(agent).isfinite().all()


def test_a_bad_observation_in_the_first_cell_does_not_leak_through_padding() -> None:
    """Padding points at the first cell; episodes of other rows differ in length, so that they are padded."""
    agent = agent_with_round(num_minibatches=4, target_kl=None)
    agent.buffer.dones[:] = False
    for row, end in ((1, 2), (2, 3), (3, 4)):
        agent.buffer.dones[row, end] = True
    agent.buffer.obs[0, 0] = math.nan
    metrics = agent.update()
    assert metrics["skipped_steps"] == 1
    assert metrics["optimizer_steps"] == 3


@pytest.mark.parametrize(("level", "split"), [("normal", False), ("debug", True)])
@pytest.mark.parametrize(("stored", "has_nan", "has_inf"), [(math.nan, True, False), (-1e9, False, True)])
def test_non_finite_ratios_skip_the_step_and_are_told_apart_on_demand(
    level: str, split: bool, stored: float, has_nan: bool, has_inf: bool
) -> None:
    agent = agent_with_round()
    agent.telemetry_config = Levels(level)
    poison_log_probs(agent, stored)
    metrics = agent.update()
    assert metrics["ratio_has_numerical_issue"]
    assert metrics["has_numerical_issue"]
    assert metrics["optimizer_steps"] == 0
    assert ("ratio_has_nan" in metrics) is split
    if split:
        assert metrics["ratio_has_nan"] is has_nan
        assert metrics["ratio_has_inf"] is has_inf
    assert parameters_of(agent).isfinite().all()


def test_a_clean_update_reports_no_numerical_issue() -> None:
    agent = agent_with_round()
    agent.telemetry_config = Levels("debug")
    metrics = agent.update()
    assert not metrics["ratio_has_numerical_issue"]
    assert not metrics["has_numerical_issue"]
    assert "ratio_has_nan" not in metrics
    assert "ratio_has_inf" not in metrics


def test_an_empty_round_changes_nothing_and_says_so() -> None:
    agent = make_agent()
    before = parameters_of(agent)
    metrics = agent.update()
    assert metrics["empty"]
    assert torch.equal(parameters_of(agent), before)
    assert all(math.isfinite(value) for value in metrics.values() if isinstance(value, float))
    assert agent.updates == 0


def test_acting_on_a_state_without_legal_actions_names_environment_head_and_step() -> None:
    agent = agent_with_round(max_steps=12)
    agent.buffer.num_steps = 7
    masks = agent.spec.all_legal((4,))
    masks["op"][3] = False
    with pytest.raises(InvalidStateMachineError, match="'op' in environment 3 at step 7"):
        agent.act(torch.randn(4, 6), masks, agent.initial_hidden())


def test_acting_under_masks_for_other_slots_is_an_error() -> None:
    agent, other = make_agent(), make_agent(slot_config=SlotConfig.of_size(5))
    with pytest.raises(InputError, match=r"'slot' must have shape \(4, 4, 3\); got \(4, 4, 5\)"):
        agent.act(torch.randn(4, 6), other.spec.all_legal((4,)), agent.initial_hidden())
    with pytest.raises(InputError, match="got nothing"):
        agent.act(torch.randn(4, 6), {}, agent.initial_hidden())


def test_acting_on_nan_observations_is_an_error() -> None:
    agent = make_agent()
    with pytest.raises(InputError, match="environment 0: the observation"):
        agent.act(torch.full((4, 6), math.nan), agent.spec.all_legal((4,)), agent.initial_hidden())
