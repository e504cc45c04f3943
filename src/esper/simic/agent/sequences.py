"""Episodes as padded sequences, so that one fused LSTM call replays a whole minibatch from the episodes' starts.

A row of the buffer may hold several episodes. Each becomes a sequence of its own: `G` sequences of at most `L` steps.
A sequence that begins inside a row starts from zeros, as acting did; one that begins a row starts from the stored
state, which is zeros too unless its episode began in an earlier round. State never crosses a boundary.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from esper.simic.agent.advantages import causal_masks
from esper.simic.agent.types import Hidden
from esper.simic.control.action_masks import select_masks
from esper.simic.control.action_spec import ActionSpec


@dataclass(slots=True)
class SequenceBatch:
    """Sequences with everything the losses need.

    | tensor | shape |
    |---|---|
    | obs | `[G, L, D]` |
    | actions, old_log_probs, active | `[G, L, H]` |
    | advantages, returns, valid | `[G, L]` |
    | selected | `[G, L, H, K]`: the masks that applied to the stored actions |
    | masks | per head `[G, L, ...]`: all of them, for the exact joint statistics |
    | hidden | two of `[layers, G, hidden]` |
    | lengths | `[G]`, on the host |

    Padding is 0 everywhere, follows the real steps, and is False in `valid` and `active`.
    """

    obs: Tensor
    actions: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    returns: Tensor
    valid: Tensor
    active: Tensor
    selected: Tensor
    masks: dict[str, Tensor]
    hidden: Hidden
    lengths: Tensor

    def rows(self, index: Tensor) -> "SequenceBatch":
        """The sequences in `index`, cut to the longest of them, without the full masks: losses need `selected` only."""
        longest = int(self.lengths[index].max())
        return SequenceBatch(
            **{name: getattr(self, name)[index, :longest] for name in _STEP_FIELDS},
            masks={},
            hidden=(self.hidden[0][:, index], self.hidden[1][:, index]),
            lengths=self.lengths[index],
        )

    @property
    def finite(self) -> Tensor:
        """`[G]` bool, on the host: neither observations nor returns nor the first LSTM state hold NaN or infinity."""
        steps = self.obs.isfinite().all(-1) & self.returns.isfinite()
        state = self.hidden[0].isfinite() & self.hidden[1].isfinite()
        return (steps.all(-1) & state.all(-1).all(0)).cpu()

    def to(self, device: torch.device | str) -> "SequenceBatch":
        """The same on `device`, without waiting for the transfer."""
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in _STEP_FIELDS}
        return replace(
            self,
            **moved,
            masks={name: mask.to(device, non_blocking=True) for name, mask in self.masks.items()},
            hidden=(self.hidden[0].to(device, non_blocking=True), self.hidden[1].to(device, non_blocking=True)),
        )


_STEP_FIELDS = tuple(spec.name for spec in fields(SequenceBatch) if spec.name not in ("masks", "hidden", "lengths"))


def gather_sequences(
    spec: ActionSpec,
    steps: Mapping[str, Tensor],
    masks: Mapping[str, Tensor],
    first_hidden: Hidden,
    starts: Tensor,
    valid: Tensor,
) -> SequenceBatch:
    """Cut rows `[N, T, ...]` into sequences at `starts [N, T]`; `first_hidden` is `[N, layers, hidden]`, twice."""
    index, real, lengths = _layout(starts, valid)
    padded = {name: _take(tensor, index, real) for name, tensor in steps.items()}
    padded_masks = {name: _take(mask, index, real) for name, mask in masks.items()}
    begins_row = (index[:, 0] % starts.shape[1] == 0).view(1, -1, 1)
    row = index[:, 0] // starts.shape[1]
    h, c = (torch.where(begins_row, state[row].movedim(1, 0), 0.0).contiguous() for state in first_hidden)
    actions = padded["actions"]
    return SequenceBatch(
        **padded,
        valid=real,
        active=causal_masks(spec, actions, real),
        selected=select_masks(spec, padded_masks, actions),
        masks=padded_masks,
        hidden=(h, c),
        lengths=lengths.cpu(),
    )


def _layout(starts: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where each step of each sequence lies: flat index `[G, L]`, whether it is real, and lengths `[G]`."""
    flat = valid.flatten().nonzero().squeeze(-1)
    sequence = starts.flatten()[flat].cumsum(0) - 1
    lengths = sequence.bincount()
    first = lengths.cumsum(0) - lengths
    position = torch.arange(len(flat), device=flat.device) - first[sequence]
    index = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.long, device=flat.device)
    real = torch.zeros_like(index, dtype=torch.bool)
    index[sequence, position] = flat
    real[sequence, position] = True
    return index, real, lengths


def _take(tensor: Tensor, index: Tensor, real: Tensor) -> Tensor:
    """`[N, T, ...]` to `[G, L, ...]`; padding is zeroed, because NaN there would poison gradients even if masked."""
    taken = tensor.flatten(0, 1)[index]
    taken[~real] = 0
    return taken


def minibatches(lengths: Tensor, count: int) -> Iterator[Tensor]:
    """Shuffled groups of whole sequences with about the same number of steps; every sequence is in exactly one."""
    order = torch.randperm(len(lengths))
    ends = lengths[order].cumsum(0)
    middles = ends - lengths[order] / 2
    group = (middles * count / ends[-1]).long()
    for number in range(count):
        chosen = order[group == number]
        if len(chosen):
            yield chosen
