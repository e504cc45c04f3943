"""Behaviour cloning: a policy that starts from what a teacher did, before it learns from what it does itself."""

import math
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.optim import Adam

from esper.leyline import EsperError
from esper.simic.agent.network import Policy
from esper.simic.agent.optimization import masked_mean, step_if_finite, value_loss
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.rollout_buffer import SequenceBatch, minibatches
from esper.simic.config import LessonConfig
from esper.simic.control.action_masks import select_logits


class Cloning(NamedTuple):
    """What behaviour cloning did."""

    losses: list[float]
    """Mean loss of each pass over the minibatches that were stepped on; NaN for a pass without any."""
    left_out: int
    """Sequences that were left out because an observation or a return was NaN or infinite."""
    skipped_steps: int
    """Minibatches that were skipped because the loss or a gradient was not finite."""


def clone(agent: PPOAgent, config: LessonConfig) -> Cloning:
    """Fit policy and values to the round in the agent's buffer, whose actions are a teacher's.

    Its choices become the most probable ones and no more: the op head keeps `config.op_smoothing` for other ops, spread
    by the prior `op_bias`, and every other head `config.detail_smoothing`. The observations of the round are taken
    into the policy's normaliser first. The buffer keeps the round; one without a single finite sequence is an error.
    """
    buffer, policy, learner = agent.buffer, agent.policy, agent.config
    policy.take_in_observations(buffer, normalize_again=True)
    buffer.compute_advantages_and_returns(learner.gamma, 1.0, horizon_is_terminal=learner.horizon_is_terminal)
    batch, left_out = _finite_sequences(agent)
    policy.take_in_returns(buffer)
    target = _Smoothing.of(agent, config)
    # An optimiser of its own: the learner's moments belong to the learner's gradients.
    optimizer = Adam(policy.network.parameters(), config.lr)
    losses, skipped = [], 0
    for _ in range(config.passes):
        taken = []
        for index in minibatches(batch.lengths, agent.num_minibatches):
            loss = _cloning_loss(policy, batch.rows(index), target, learner.value_coef)
            if step_if_finite(optimizer, loss):
                taken.append(loss.item())
            else:
                skipped += 1
        losses.append(sum(taken) / len(taken) if taken else math.nan)
    return Cloning(losses, left_out, skipped)


def _finite_sequences(agent: PPOAgent) -> tuple[SequenceBatch, int]:
    """The sequences of the round without NaN or infinity, and how many others there were."""
    if not agent.buffer.valid.any():
        raise EsperError("there is nothing to imitate: the round holds no steps")
    batch, left_out = agent.buffer.get_batched_sequences(agent.device).finite_rows()
    if batch is None:
        raise EsperError(
            f"there is nothing to imitate: all {left_out} episodes hold NaN or infinity in observations or returns; "
            "look at the reward first"
        )
    return batch, left_out


class _Smoothing(NamedTuple):
    """What a head keeps for actions that its teacher did not take."""

    share: Tensor
    """`[H]`"""
    logits: Tensor
    """`[H, K]`: how that share is spread over what is legal."""

    @classmethod
    def of(cls, agent: PPOAgent, config: LessonConfig) -> Self:
        spec, prior = agent.spec, agent.config.op_bias
        share = torch.full((len(spec.names),), config.detail_smoothing)
        share[spec.decider_index] = config.op_smoothing
        logits = torch.zeros(len(spec.names), spec.width)
        logits[spec.decider_index, : len(prior)] = torch.tensor(prior)
        return cls(share.to(agent.device), logits.to(agent.device))


def _cloning_loss(policy: Policy, part: SequenceBatch, target: _Smoothing, value_coef: float) -> Tensor:
    """Cross-entropy to the smoothed actions, each head over the steps where it mattered, plus the value loss."""
    output = policy.replay(part)
    # Smoothed labels: the teacher's action, and a share for whatever else was legal.
    legal = part.legal
    logits = select_logits(policy.spec, output.logits, part.actions)
    log_probs = torch.where(legal, logits, -torch.inf).log_softmax(-1)
    others = torch.where(legal, target.logits, -torch.inf).softmax(-1)
    chosen = log_probs.gather(-1, part.actions.unsqueeze(-1)).squeeze(-1)
    tried = (others * torch.where(legal, log_probs, 0.0)).sum(-1)
    fit = torch.where(part.active, (1 - target.share) * chosen + target.share * tried, 0.0)
    value, _ = value_loss(output.values, policy.scaled(part.returns), part.valid)
    return value_coef * value - masked_mean(fit, part.active).sum()
