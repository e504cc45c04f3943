"""The entropy coefficient: its decay and its floor."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.leyline import ENTROPY_FLOOR_SCALE_CAP
from esper.simic.control.action_spec import ActionSpec


@dataclass(frozen=True, slots=True)
class EntropySchedule:
    """How strongly exploration is paid for."""

    initial: float
    minimum: float
    adaptive_floor: bool = False
    decay_steps: int | None = None
    """Steps over which the coefficient falls to its floor; None: it stays."""

    def floor(self, mask: Tensor | None = None) -> float:
        """`minimum`, raised where a mask leaves few of the actions, by ln(all) / ln(valid) but at most threefold.

        The entropies themselves are already normalised by the valid actions. The adaptive floor comes on top: it
        keeps heads exploring that rarely have a choice.
        """
        if mask is None or not self.adaptive_floor:
            return self.minimum
        total, valid = mask.numel(), int(mask.sum())
        if valid <= 1 or valid == total:
            return self.minimum
        return self.minimum * min(math.log(total) / math.log(valid), ENTROPY_FLOOR_SCALE_CAP)

    def coefficient(self, steps: int, mask: Tensor | None = None) -> float:
        """The scalar base after `steps`; per-head factors multiply it. 0 to begin with means no bonus at all."""
        if self.initial == 0.0:
            return 0.0
        floor = self.floor(mask)
        if self.decay_steps is None:
            return max(self.initial, floor) if self.adaptive_floor else self.initial
        progress = min(1.0, steps / self.decay_steps) if self.decay_steps > 0 else 1.0
        return max(floor, self.initial + progress * (floor - self.initial))


def fewest_valid(spec: ActionSpec, selected: Tensor, active: Tensor) -> dict[str, Tensor | None]:
    """Per head a mask as restrictive as the tightest choice in the batch, or None if it never had a choice.

    `selected [..., H, K]`, `active [..., H]`; one host transfer for all heads.
    """
    valid = selected.sum(-1)
    counts = torch.where(active & (valid > 1), valid, spec.width + 1).flatten(0, -2).amin(0).tolist()
    return {
        head.name: torch.arange(head.size) < count if count <= head.size else None
        for head, count in zip(spec.heads, counts, strict=True)
    }
