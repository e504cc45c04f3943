"""Rounds that the value function is fitted to again and again, while the policy learns from each of them once.

What a decision brings is small beside the luck of an episode. A policy may only learn from what it has just done, but
what came of a state stays true for longer: values that are fitted to several rounds average that luck out, and
advantages that lean on them are less noisy. The policy shares its body with the values, so it is held where it is.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam

from esper.simic.agent.losses import masked_mean, value_loss
from esper.simic.agent.network import Policy
from esper.simic.agent.optimizer import step_if_finite
from esper.simic.agent.rollout_buffer import SequenceBatch, minibatches


class ValueMemory:
    """The newest `rounds` rounds; with 0 it remembers nothing and does nothing."""

    def __init__(self, rounds: int) -> None:
        self._rounds: deque[SequenceBatch] = deque(maxlen=rounds)

    def __len__(self) -> int:
        return len(self._rounds)

    def remember(self, batch: SequenceBatch) -> int:
        """Keep a round, with its returns in raw units; returns how many sequences were left out as not finite.

        Kept, they would spoil a minibatch of every refit until the round is forgotten.
        """
        finite = batch.finite
        left_out = int((~finite).sum())
        if left_out < len(finite):
            self._rounds.append(batch.rows(finite.nonzero().squeeze(-1)) if left_out else replace(batch, masks={}))
        return left_out

    def refit(self, policy: Policy, lr: float, value_coef: float, num_minibatches: int) -> int:
        """One pass over every remembered round, in random order, with an optimiser of its own.

        Returns how many minibatches were skipped because the loss or a gradient was not finite.
        """
        skipped = 0
        optimizer = Adam(policy.network.parameters(), lr)
        with torch.no_grad():
            befores = [policy.replay(batch).logits for batch in self._rounds]
        for number in torch.randperm(len(self._rounds)).tolist():
            batch, before = self._rounds[number], befores[number]
            for index in minibatches(batch.lengths, num_minibatches):
                part = batch.rows(index)
                loss = _loss(policy, part, before[index, : part.obs.shape[1]], value_coef)
                skipped += not step_if_finite(optimizer, loss)
        optimizer.zero_grad(set_to_none=True)
        return skipped

    def state_dict(self) -> list[dict[str, Any]]:
        """Everything, as tensors and built-in types."""
        return [{spec.name: getattr(batch, spec.name) for spec in fields(batch)} for batch in self._rounds]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]], device: str) -> None:
        """Take over what another one saved."""
        self._rounds.extend(SequenceBatch(**batch).to(device) for batch in state)


def _loss(policy: Policy, part: SequenceBatch, before: Tensor, value_coef: float) -> Tensor:
    """The value loss, and how far the policy has moved from the logits `before`, over the heads that mattered."""
    output = policy.replay(part)
    value, _ = value_loss(output.values, policy.scaled(part.returns), part.valid)
    legal = part.legal
    old, new = (torch.where(legal, logits, -torch.inf).log_softmax(-1) for logits in (before, output.logits))
    moved = (old.exp() * (torch.where(legal, old, 0.0) - torch.where(legal, new, 0.0))).sum(-1)
    return value_coef * value + masked_mean(moved, part.active).sum()
