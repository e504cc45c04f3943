"""Values that are fitted to several rounds: closer to what came of them, while the policy stays where it is."""

import logging
import math

import pytest
import torch
from torch import Tensor

from esper.simic.agent import PPOAgent
from esper.simic.agent.optimization import ValueMemory
from esper.simic.agent.rollout_buffer import SequenceBatch
from esper_lab.player import Player
from tests.simic.builders import RandomWorld, agent_with_round, make_agent, parameters_of


def round_of(agent: PPOAgent) -> SequenceBatch:
    """What the agent's buffer holds, with the returns that came of it."""
    agent.buffer.compute_advantages_and_returns(agent.config.gamma, 1.0)
    return agent.buffer.get_batched_sequences()


def error_of(agent: PPOAgent, batch: SequenceBatch) -> float:
    with torch.no_grad():
        values: Tensor = agent.policy.replay(batch).values * agent.policy.return_scale.scale
    return float((values - batch.returns)[batch.valid].square().mean())


def test_refitting_brings_values_closer_and_leaves_the_policy() -> None:
    agent = agent_with_round(num_minibatches=2)
    batch, memory = round_of(agent), ValueMemory(60)
    for _ in range(60):
        memory.remember(batch)
    before, error = agent.policy.replay(batch), error_of(agent, batch)
    memory.refit(agent.policy, 3e-3, agent.config.value_coef, agent.num_minibatches)
    assert error_of(agent, batch) < 0.5 * error
    after = agent.policy.replay(batch)
    old, new = (torch.where(batch.selected, each.logits, -torch.inf).softmax(-1) for each in (before, after))
    assert (old - new)[batch.active].abs().mean() < 0.02


def test_only_the_newest_rounds_are_remembered() -> None:
    agent, memory = agent_with_round(), ValueMemory(2)
    rounds = [round_of(agent) for _ in range(3)]
    for number, batch in enumerate(rounds):
        batch.returns = torch.full_like(batch.returns, float(number))
        memory.remember(batch)
    assert [float(state["returns"][0, 0]) for state in memory.state_dict()] == [1.0, 2.0]


def test_an_agent_remembers_its_rounds_only_if_asked_to() -> None:
    for rounds, remembered in ((0, 0), (2, 2)):
        torch.manual_seed(0)
        agent = make_agent(value_memory=rounds)
        world = RandomWorld(agent.num_envs)
        for _ in range(3):
            Player(agent, world).fill_buffer()
            agent.update()
        assert len(agent.memory) == remembered


def test_a_memory_changes_what_is_learned() -> None:
    learned = []
    for rounds in (0, 1):
        agent = agent_with_round(value_memory=rounds)
        agent.update()
        learned.append(parameters_of(agent))
    assert not torch.equal(*learned)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("what", ["reward", "observation"])
def test_a_round_that_is_not_finite_leaves_weights_and_memory_finite(
    what: str, bad: float, caplog: pytest.LogCaptureFixture
) -> None:
    agent = agent_with_round(value_memory=2, num_minibatches=4, target_kl=None)
    agent.buffer.dones[:] = False
    if what == "reward":
        agent.buffer.rewards[1, 4] = bad
    else:
        agent.buffer.obs[2, 5] = bad
    with caplog.at_level(logging.WARNING):
        metrics = agent.update()
    assert parameters_of(agent).isfinite().all()
    assert metrics["has_numerical_issue"]
    assert metrics["skipped_steps"] > 0
    assert "leaves out 1 of 4 sequences" in caplog.text
    (kept,) = agent.memory.state_dict()
    assert len(kept["lengths"]) == 3
    world = RandomWorld(agent.num_envs)
    Player(agent, world).fill_buffer()
    assert not agent.update()["has_numerical_issue"]


def test_minibatches_of_the_memory_whose_loss_overflows_are_skipped_and_counted() -> None:
    agent = agent_with_round(num_minibatches=2, value_memory=1)
    batch = round_of(agent)
    batch.returns[0, 0] = 1e30
    assert agent.memory.remember(batch) == 0
    before = parameters_of(agent)
    assert agent.memory.refit(agent.policy, 3e-3, agent.config.value_coef, agent.num_minibatches) == 1
    assert parameters_of(agent).isfinite().all()
    assert not torch.equal(parameters_of(agent), before)


def test_a_round_without_a_finite_sequence_is_not_remembered() -> None:
    agent = agent_with_round(value_memory=1)
    agent.buffer.obs[:] = math.nan
    agent.update()
    assert len(agent.memory) == 0
