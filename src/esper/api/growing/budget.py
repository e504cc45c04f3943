"""What growth may cost at most, and the actions that are left under it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from esper.kasmina import UNLIMITED, ActionMasks, Catalogue, SlotTable, action_masks
from esper.leyline import InputError, Op


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that all seeds together may add, at any moment. At least one limit is given; of several, all hold."""

    params: int | None = None
    """Parameters."""
    flops: int | None = None
    """Floating-point operations of a forward pass of one sample."""
    ratio: float | None = None
    """Parameters, as a share of the model's own: 0.2 lets it grow by a fifth."""

    def __post_init__(self) -> None:
        if self.params is None and self.flops is None and self.ratio is None:
            raise InputError(
                "this Budget limits nothing; give it params, flops or ratio, as in Budget(params=1000), "
                "or leave out the budget to grow without one"
            )
        for spec in fields(self):
            value = getattr(self, spec.name)
            kind = float if spec.name == "ratio" else int
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | kind) or not 0 <= value < math.inf:
                amount = "number" if kind is float else "whole number"
                raise InputError(f"Budget.{spec.name} must be a {amount} of 0 or more; got {value!r}")

    def of(self, host_params: int) -> "Limits":
        """The limits for a model of this size."""
        by_ratio = UNLIMITED if self.ratio is None else min(math.floor(self.ratio * host_params), UNLIMITED)
        params = min(UNLIMITED if self.params is None else self.params, by_ratio)
        return Limits(params, UNLIMITED if self.flops is None else self.flops)


@dataclass(frozen=True, slots=True)
class Limits:
    """A budget for one model: whole numbers, `UNLIMITED` where nothing was said."""

    params: int
    flops: int

    def masks(self, table: SlotTable, catalogue: Catalogue, epochs_left: Tensor | None = None) -> ActionMasks:
        """What is legal for N hosts, and keeps each of them within these limits and the `epochs_left [N]`, if given."""
        masks = action_masks(table, catalogue, torch.full((table.shape[0],), self.params), epochs_left)
        if self.flops == UNLIMITED:
            return masks
        left = self.flops - catalogue.planted_flops(table).sum(1)
        blueprint = masks.blueprint & (catalogue.flops <= left[:, None, None])
        slot = masks.slot.clone()
        slot[:, Op.GERMINATE] &= blueprint.any(2)
        return ActionMasks(slot.any(2), slot, blueprint, masks.blend)

    def used(self, table: SlotTable, catalogue: Catalogue) -> float | None:
        """The share of the tighter limit that the first host's seeds take; None without a limit."""
        amounts: list[tuple[int, Callable[[], Tensor]]] = [
            (self.params, lambda: table.added_params),
            (self.flops, lambda: catalogue.planted_flops(table).sum(1)),
        ]
        shares = [int(added()[0]) / limit if limit else 1.0 for limit, added in amounts if limit != UNLIMITED]
        return max(shares, default=None)
