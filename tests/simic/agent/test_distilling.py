"""Distillation takes on the least mean regret of what cannot be told apart."""

import math

import pytest
import torch

from esper.leyline import Op
from esper.simic.agent import PPOAgent
from esper.simic.agent.distilling import Lesson, distil
from esper.simic.config import LessonConfig
from esper.simic.control.regrets import Regrets
from tests.simic.builders import ESPER_SPEC, make_agent

HOSTS, STEPS, WORST = 16, 2, 4.0
SLOTS, KINDS, BLENDS, _ = (head.size for head in ESPER_SPEC.heads)
CONFIG = LessonConfig(passes=600, lr=3e-3)


def regrets(waiting: float) -> Regrets:
    """Even hosts should plant kind 0 in slot 0, odd ones kind 1 in slot 1; the other one costs 3 points."""
    plantings = torch.full((HOSTS, STEPS, SLOTS, KINDS, BLENDS), WORST)
    even = torch.arange(HOSTS) % 2 == 0
    for place in range(2):
        right = even if place == 0 else ~even
        plantings[:, :, place, place, 0] = torch.where(right, 0.0, 3.0)[:, None]
    waits = torch.full((HOSTS, STEPS), waiting)
    return Regrets(waits, plantings, torch.full((HOSTS, STEPS, SLOTS), WORST), torch.full((HOSTS, STEPS), WORST))


def taught(costs: Regrets, *, told_apart: bool) -> PPOAgent:
    """An agent after one lesson in which even hosts look like odd ones, or do not."""
    torch.manual_seed(0)
    agent = make_agent(num_envs=HOSTS, max_steps=STEPS, normalize=True, lstm_hidden_dim=32)
    buffer = agent.buffer
    buffer.raw_obs[:] = 0.1 * torch.randn(HOSTS, STEPS, agent.state_dim)
    buffer.raw_obs[1::2] = buffer.raw_obs[::2]
    if told_apart:
        buffer.raw_obs[::2, :, 0] += 3.0
    for mask in buffer.masks.values():
        mask[:] = True
    buffer.step_counts[:] = STEPS
    distil(agent, [Lesson.of(buffer, costs)], CONFIG)
    return agent


def decisions(agent: PPOAgent) -> list[tuple[int, ...]]:
    """What it decides in the first step of every host."""
    observations = agent.policy.normalized(agent.buffer.raw_obs[:, 0])
    step = agent.act(observations, ESPER_SPEC.all_legal((HOSTS,)), agent.initial_hidden(), deterministic=True)
    return [tuple(row) for row in step.actions.tolist()]


def test_what_can_be_told_apart_gets_its_own_best_decision() -> None:
    chosen = decisions(taught(regrets(waiting=1.0), told_apart=True))
    assert chosen == [(host % 2, host % 2, 0, int(Op.GERMINATE)) for host in range(HOSTS)]


def test_what_looks_alike_waits_where_that_costs_less_than_guessing() -> None:
    assert set(decisions(taught(regrets(waiting=0.5), told_apart=False))) == {(0, 0, 0, 0)}


def test_what_looks_alike_guesses_where_waiting_costs_more() -> None:
    # Right for half of them, and 1.5 points in the mean. Any other kind in these slots costs 4, which the flat network,
    # whose kinds know nothing of the slot, only learns from the regret of its decisions.
    chosen = set(decisions(taught(regrets(waiting=3.5), told_apart=False)))
    assert chosen <= {(0, 0, 0, int(Op.GERMINATE)), (1, 1, 0, int(Op.GERMINATE))}


def test_the_loss_is_the_mean_regret_and_falls() -> None:
    torch.manual_seed(0)
    agent = make_agent(num_envs=HOSTS, max_steps=STEPS)
    agent.buffer.raw_obs[:] = torch.randn(HOSTS, STEPS, agent.state_dim)
    for mask in agent.buffer.masks.values():
        mask[:] = True
    agent.buffer.step_counts[:] = STEPS
    report = distil(agent, [Lesson.of(agent.buffer, regrets(0.5))], CONFIG)
    # A fresh policy takes every op about as often; plantings that cost least are few.
    assert 1.0 < report.losses[0] <= WORST
    assert report.losses[-1] < 0.6
    assert report.skipped_steps == 0


@pytest.mark.parametrize("spoiled", ["raw_obs", "returns"])
def test_episodes_that_are_not_finite_are_left_out(spoiled: str) -> None:
    agent = make_agent(num_envs=HOSTS, max_steps=STEPS)
    agent.buffer.step_counts[:] = STEPS
    for mask in agent.buffer.masks.values():
        mask[:] = True
    getattr(agent.buffer, spoiled)[3, 1] = math.nan
    lesson = Lesson.of(agent.buffer, regrets(0.5))
    assert lesson.left_out == 1
    assert len(lesson.raw_obs) == len(lesson.regrets.wait) == HOSTS - 1
    assert distil(agent, [lesson], LessonConfig(passes=2)).left_out == 1
    assert all(parameter.isfinite().all() for parameter in agent.policy.network.parameters())


def test_steps_that_were_not_played_do_not_count() -> None:
    torch.manual_seed(0)
    agents = []
    for junk in (0.0, 1e6):
        torch.manual_seed(1)
        agent = make_agent(num_envs=HOSTS, max_steps=STEPS)
        agent.buffer.raw_obs[:, 0] = 0.5
        for mask in agent.buffer.masks.values():
            mask[:] = True
        agent.buffer.step_counts[:] = 1
        costs = regrets(0.5)
        costs.wait[:, 1] = junk
        distil(agent, [Lesson.of(agent.buffer, costs)], LessonConfig(passes=3))
        agents.append(agent)
    one, other = (list(agent.policy.network.parameters()) for agent in agents)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
