"""Distillation: a policy that learns from what a teacher knows of the cost of every decision.

The policy takes on the least mean regret, not the teacher's choice. Where it cannot tell tasks apart yet, and the best
choices of them differ, it thus does what costs least over all of them, which may be to wait until it can.

It first learns to expect the cost of every choice, taken or not. Then the regret of its own decisions joins the loss,
so that it is exact where choices are close and not where all are bad. By itself this would never find a choice that is
rare.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.optim import Adam

from esper.simic.agent.cloning import Cloning
from esper.simic.agent.optimization import step_if_finite
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.rollout_buffer import TamiyoRolloutBuffer
from esper.simic.config import LessonConfig
from esper.simic.control.action_masks import to_device
from esper.simic.control.regrets import Regrets, expected_regret, regret_loss

_LAST_LR_FACTOR = 0.1
_EXPECTING = 0.25
"""The share of the first lesson's passes in which costs alone are learned."""
_STILL_EXPECTING = 0.1
"""How much the error of expected costs counts after that, beside the regret of decisions."""
_EPISODES = 16
"""Episodes in a minibatch."""
_WHOLE_EVERY = 3
"""One pass in so many sees whole episodes; the others see their first half, in which nearly all is decided."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A round of whole episodes, one a row, with what every decision in them would have cost."""

    raw_obs: Tensor
    """`[N, T, D]`"""
    masks: dict[str, Tensor]
    returns: Tensor
    """`[N, T]`"""
    valid: Tensor
    """`[N, T]`"""
    regrets: Regrets
    left_out: int
    """Episodes that are left out because an observation or a return was NaN or infinite."""

    @classmethod
    def of(cls, buffer: TamiyoRolloutBuffer, regrets: Regrets) -> Self:
        """The finite episodes of a round whose returns are known; `regrets` is over `[N, T]`."""
        steps = buffer.raw_obs.isfinite().all(-1) & buffer.returns.isfinite()
        finite = (steps | ~buffer.valid).all(1)
        return cls(
            buffer.raw_obs[finite],
            {name: mask[finite] for name, mask in buffer.masks.items()},
            buffer.returns[finite],
            buffer.valid[finite],
            Regrets(*(to_device(part, buffer.device)[finite] for part in regrets)),
            int((~finite).sum()),
        )

    def part(self, rows: Tensor, steps: int) -> "Lesson":
        """The first steps of some of its episodes."""
        return Lesson(
            self.raw_obs[rows, :steps],
            {name: mask[rows, :steps] for name, mask in self.masks.items()},
            self.returns[rows, :steps],
            self.valid[rows, :steps],
            Regrets(*(part[rows, :steps] for part in self.regrets)),
            self.left_out,
        )


def distil(agent: PPOAgent, lessons: Sequence[Lesson], config: LessonConfig) -> Cloning:
    """Fit the policy to the regrets of all lessons so far, and its values to their returns.

    The newest lesson is the round in the agent's buffer. Losses are mean regrets of a decision, in points.
    """
    policy, network = agent.policy, agent.policy.network
    policy.take_in_observations(agent.buffer)
    policy.take_in_returns(agent.buffer)
    observations = [policy.normalized(lesson.raw_obs) for lesson in lessons]
    optimizer = Adam(network.parameters(), config.lr)
    losses, skipped = [], 0
    for number in range(config.passes):
        progress = number / max(1, config.passes - 1)
        optimizer.param_groups[0]["lr"] = config.lr * (1 - (1 - _LAST_LR_FACTOR) * progress)
        taken = []
        deciding = len(lessons) > 1 or number >= _EXPECTING * config.passes
        steps = agent.buffer.max_steps if number % _WHOLE_EVERY == 0 else -(-agent.buffer.max_steps // 2)
        for which, rows in _minibatches(lessons):
            lesson = lessons[which].part(rows, steps)
            loss, regret = _loss(agent, lesson, observations[which][rows, :steps], deciding=deciding)
            if step_if_finite(optimizer, loss):
                taken.append(regret)
            else:
                skipped += 1
        losses.append(sum(taken) / len(taken) if taken else math.nan)
    return Cloning(losses, lessons[-1].left_out, skipped)


def _minibatches(lessons: Sequence[Lesson]) -> list[tuple[int, Tensor]]:
    """Shuffled groups of episodes, each of one lesson."""
    groups = [
        (number, rows)
        for number, lesson in enumerate(lessons)
        for rows in torch.randperm(len(lesson.raw_obs)).split(_EPISODES)
        if len(rows)
    ]
    return [groups[index] for index in torch.randperm(len(groups)).tolist()]


def _loss(agent: PPOAgent, lesson: Lesson, observations: Tensor, *, deciding: bool) -> tuple[Tensor, float]:
    """The loss of a lesson whose normalised observations are given, and its mean regret."""
    spec, policy, valid = agent.spec, agent.policy, lesson.valid
    output = policy.network(observations)
    errors = (output.values - policy.scaled(lesson.returns)).square()
    loss, regret = regret_loss(spec, output.logits, lesson.masks, lesson.regrets)
    if deciding:
        loss = _STILL_EXPECTING * loss + expected_regret(spec, output.logits, lesson.masks, lesson.regrets)
    loss = torch.where(valid, loss + agent.config.value_coef * errors, 0.0)
    count = valid.sum().clamp(min=1)
    return loss.sum() / count, float(torch.where(valid, regret, 0.0).sum() / count)
