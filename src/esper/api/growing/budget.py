"""What growth may cost at most, the actions that are left under it, and what keeping seeds costs in units of score."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor, nn

from esper.kasmina import UNLIMITED, ActionMasks, Catalogue, SlotTable, action_masks
from esper.kasmina.flops import flops_per_sample
from esper.leyline import InputError, Op, rent


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


@dataclass(frozen=True, slots=True)
class Pricing:
    """A price for parameters, one for FLOPs if that is asked for, and the size of the model that they relate to."""

    host_params: int
    price: Tensor
    """`[1]`"""
    host_flops: int
    """For one sample; 1, which nothing reads, where FLOPs have no price."""
    flop_price: float

    @classmethod
    def of(cls, host: nn.Module, example: Any, price: float, flop_price: float) -> Self:
        """For this model; its FLOPs are counted only if they have a price."""
        params = sum(parameter.numel() for parameter in host.parameters())
        paid = torch.tensor([_checked(price, "price")])
        flops = _counted(host, example) if _checked(flop_price, "flop_price") else 1
        return cls(params, paid, flops, float(flop_price))

    def owed(self, table: SlotTable, catalogue: Catalogue) -> Tensor:
        """`[S]`: what keeping the seed in each slot costs."""
        flops = catalogue.planted_flops(table)
        return rent(table.params, self.host_params, self.price, flops, self.host_flops, self.flop_price)[0]


def _checked(price: float, name: str) -> float:
    if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < math.inf:
        raise InputError(f"{name} must be a number of 0 or more; got {price!r}")
    return float(price)


def _counted(host: nn.Module, example: Any) -> int:
    remedy = "leave out flop_price to charge for parameters alone"
    try:
        counted = flops_per_sample(host, example)
    except InputError as error:
        raise InputError(f"{error}; {remedy}") from error
    if not counted:
        raise InputError(f"the model does nothing with the example that could be counted as FLOPs; {remedy}")
    return counted
