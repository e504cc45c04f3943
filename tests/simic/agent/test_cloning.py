"""Behaviour cloning: NaN and infinity cost the episodes that hold them, never the weights."""

import math

import pytest
import torch

from esper.leyline import EsperError
from esper.simic.agent import PPOAgent
from esper.simic.agent.cloning import clone
from esper.simic.config import LessonConfig
from tests.simic.builders import agent_with_round, parameters_of

HOW = LessonConfig(passes=3, lr=3e-3, op_smoothing=0.1, detail_smoothing=0.05)


def spoil(agent: PPOAgent, what: str, bad: float) -> None:
    if what == "reward":
        agent.buffer.rewards[1, 4] = bad
    else:
        agent.buffer.obs[2, 5] = bad


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("what", ["reward", "observation"])
def test_an_episode_that_is_not_finite_is_left_out_and_the_others_are_imitated(what: str, bad: float) -> None:
    agent = agent_with_round(num_minibatches=4)
    spoil(agent, what, bad)
    cloning = clone(agent, HOW)
    assert parameters_of(agent).isfinite().all()
    assert (cloning.left_out, cloning.skipped_steps) == (1, 0)
    assert cloning.losses[-1] < cloning.losses[0]


def test_minibatches_whose_loss_overflows_are_skipped_and_counted() -> None:
    agent = agent_with_round(num_minibatches=2, value_coef=1e38)
    agent.buffer.dones[:] = False
    agent.buffer.rewards[0, 0] = 1e30  # finite, and so large beside the others that its own loss is not
    before = parameters_of(agent)
    cloning = clone(agent, HOW)
    assert cloning.left_out == 0
    assert cloning.skipped_steps > 0
    assert parameters_of(agent).isfinite().all()
    assert not torch.equal(parameters_of(agent), before)


def test_a_round_without_a_finite_episode_cannot_be_imitated() -> None:
    agent = agent_with_round()
    before = parameters_of(agent)
    agent.buffer.obs[:] = math.nan
    with pytest.raises(EsperError, match=r"all \d+ episodes hold NaN or infinity"):
        clone(agent, HOW)
    agent.buffer.clear()
    with pytest.raises(EsperError, match="the round holds no steps"):
        clone(agent, HOW)
    assert torch.equal(parameters_of(agent), before)
