"""Behaviour cloning: a policy that starts from what a teacher did, before it learns from what it does itself."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.optim import Adam

from esper.leyline import EsperError
from esper.simic.agent.losses import masked_mean, value_loss
from esper.simic.agent.network import last_layer
from esper.simic.agent.optimizer import step_if_finite
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.sequences import SequenceBatch, minibatches


class Cloning(NamedTuple):
    """What behaviour cloning did."""

    losses: list[float]
    """Mean loss of each pass over the minibatches that were stepped on; NaN for a pass without any."""
    left_out: int
    """Sequences that were left out because an observation or a return was NaN or infinite."""
    skipped_steps: int
    """Minibatches that were skipped because the loss or a gradient was not finite."""


def clone(
    agent: PPOAgent,
    passes: int,
    lr: float,
    smoothing: float,
    detail_smoothing: float,
    decider_prior: Sequence[float] | None = None,
) -> Cloning:
    """Fit policy and values to the round in the agent's buffer.

    The actions in it are a teacher's. Its choices become the most probable ones and no more: the deciding head keeps
    `smoothing` for others, spread as the logits `decider_prior` say what is worth trying, and every other head
    `detail_smoothing`. The buffer keeps the round. A round without a single finite sequence is an error.
    """
    buffer, network = agent.buffer, agent._base_network
    buffer.compute_advantages_and_returns(agent.gamma, 1.0, horizon_is_terminal=agent.horizon_is_terminal)
    batch, left_out = _finite_sequences(agent)
    agent.return_scale.update(buffer.returns[buffer.valid], last_layer(network.value_head))
    target = _Smoothing.of(agent, smoothing, detail_smoothing, decider_prior)
    optimizer = Adam(network.parameters(), lr)  # its own: the learner's moments belong to the learner's gradients
    losses, skipped = [], 0
    for _ in range(passes):
        taken = []
        for index in minibatches(batch.lengths, agent.num_minibatches):
            loss = _loss(agent, batch.rows(index), target)
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
    batch = agent.buffer.get_batched_sequences(agent.device)
    finite = batch.finite
    left_out = int((~finite).sum())
    if left_out == len(finite):
        raise EsperError(
            f"there is nothing to imitate: all {left_out} episodes hold NaN or infinity in observations or returns; "
            "look at the reward first"
        )
    return (batch.rows(finite.nonzero().squeeze(-1)) if left_out else batch), left_out


class _Smoothing(NamedTuple):
    """What a head keeps for actions that its teacher did not take."""

    share: Tensor
    """`[H]`"""
    logits: Tensor
    """`[H, K]`: how that share is spread over what is legal."""

    @classmethod
    def of(
        cls, agent: PPOAgent, smoothing: float, detail_smoothing: float, decider_prior: Sequence[float] | None
    ) -> Self:
        names, decider = agent.spec.names, agent.spec.names.index(agent.spec.decider)
        share = torch.full((len(names),), detail_smoothing)
        share[decider] = smoothing
        logits = torch.zeros(len(names), agent.spec.width)
        if decider_prior is not None:
            logits[decider, : len(decider_prior)] = torch.tensor(decider_prior)
        return cls(share.to(agent.device), logits.to(agent.device))


def _loss(agent: PPOAgent, part: SequenceBatch, target: _Smoothing) -> Tensor:
    """Cross-entropy to the smoothed actions, each head over the steps where it mattered, plus the value loss."""
    output = agent._base_network(part.obs, part.hidden)
    legal = part.selected | ~part.active.unsqueeze(
        -1
    )  # heads that did not matter are left out below, but must be finite
    log_probs = torch.where(legal, output.logits, -torch.inf).log_softmax(-1)
    others = torch.where(legal, target.logits, -torch.inf).softmax(-1)
    chosen = log_probs.gather(-1, part.actions.unsqueeze(-1)).squeeze(-1)
    tried = (others * torch.where(legal, log_probs, 0.0)).sum(-1)
    fit = torch.where(part.active, (1 - target.share) * chosen + target.share * tried, 0.0)
    value, _ = value_loss(output.values, part.returns / agent.return_scale.scale, part.valid)
    return agent.value_coef * value - masked_mean(fit, part.active).sum()
