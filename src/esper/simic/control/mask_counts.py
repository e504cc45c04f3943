"""How often masking left a head less than its full choice."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from esper.leyline import HEAD_NAMES
from esper.simic.control.action_masks import relevant_heads, select_masks
from esper.simic.control.action_spec import ActionSpec, Masks


@dataclass(frozen=True, slots=True)
class MaskCounts:
    """Per head: its decisions, and those in which masking removed at least one option. Counts of batches add up."""

    names: tuple[str, ...]
    decisions: Tensor
    """`[H]`."""
    hits: Tensor
    """`[H]`."""

    @classmethod
    def zero(cls, names: tuple[str, ...] = HEAD_NAMES) -> Self:
        """Before the first decision."""
        nothing = torch.zeros(len(names), dtype=torch.int64)
        return cls(names, nothing, nothing)

    def __add__(self, other: Self) -> Self:
        return type(self)(self.names, self.decisions + other.decisions, self.hits + other.hits)

    def rates(self) -> dict[str, float]:
        """Hits per decision; 0 for a head that never decided."""
        return dict(zip(self.names, (self.hits / self.decisions.clamp(min=1)).tolist(), strict=True))


def count_mask_hits(spec: ActionSpec, selected: Tensor, active: Tensor) -> MaskCounts:
    """Counts over a batch; `selected [..., H, K]` as from `select_masks`, `active [..., H]`: the head decided."""
    sizes = torch.tensor([head.size for head in spec.heads], device=selected.device)
    hits = (active & (selected.sum(-1) < sizes)).flatten(0, -2).sum(0)
    return MaskCounts(spec.names, active.flatten(0, -2).sum(0), hits)


def count_masks(spec: ActionSpec, masks: Masks, actions: Tensor) -> MaskCounts:
    """Counts over the decisions `actions [..., H]` made under `masks`; heads that did not matter decided nothing."""
    return count_mask_hits(spec, select_masks(spec, masks, actions), relevant_heads(spec, actions))


def mask_hit_rates(spec: ActionSpec, selected: Tensor, active: Tensor) -> dict[str, float]:
    """The rates of one batch, as `count_mask_hits` takes it."""
    return count_mask_hits(spec, selected, active).rates()
