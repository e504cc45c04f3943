"""Rounds that the value function is fitted to again and again, while the policy learns from each of them once.

What a decision brings is small beside the luck of an episode. A policy may only learn from what it has just done, but
what came of a state stays true for longer: values that are fitted to several rounds average that luck out, and
advantages that lean on them are less noisy. The policy shares its body with the values, so it is held where it is.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Adam

from esper.simic.agent.losses import masked_mean, value_loss
from esper.simic.agent.optimizer import step_if_finite
from esper.simic.agent.sequences import SequenceBatch, minibatches

if TYPE_CHECKING:
    from esper.simic.agent.ppo import PPOAgent


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

    def refit(self, agent: "PPOAgent", lr: float) -> int:
        """One pass over every remembered round, in random order, with an optimiser of its own.

        Returns how many minibatches were skipped because the loss or a gradient was not finite.
        """
        skipped = 0
        optimizer = Adam(agent._base_network.parameters(), lr)
        befores = [agent._replay(batch).logits for batch in self._rounds]
        for number in torch.randperm(len(self._rounds)).tolist():
            batch, before = self._rounds[number], befores[number]
            for index in minibatches(batch.lengths, agent.num_minibatches):
                part = batch.rows(index)
                loss = _loss(agent, part, before[index, : part.obs.shape[1]])
                skipped += not step_if_finite(optimizer, loss)
        optimizer.zero_grad(set_to_none=True)
        return skipped

    def state_dict(self) -> list[dict[str, Any]]:
        """Everything, as tensors and built-in types."""
        return [{spec.name: getattr(batch, spec.name) for spec in fields(batch)} for batch in self._rounds]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]], device: str) -> None:
        """Take over what another one saved."""
        self._rounds.extend(SequenceBatch(**batch).to(device) for batch in state)


def _loss(agent: "PPOAgent", part: SequenceBatch, before: Tensor) -> Tensor:
    """The value loss, and how far the policy has moved from the logits `before`, over the heads that mattered."""
    output = agent._base_network(part.obs, part.hidden)
    value, _ = value_loss(output.values, part.returns / agent.return_scale.scale, part.valid)
    legal = part.selected | ~part.active.unsqueeze(-1)  # heads that did not matter must be finite
    old, new = (torch.where(legal, logits, -torch.inf).log_softmax(-1) for logits in (before, output.logits))
    moved = (old.exp() * (torch.where(legal, old, 0.0) - torch.where(legal, new, 0.0))).sum(-1)
    return agent.value_coef * value + masked_mean(moved, part.active).sum()
