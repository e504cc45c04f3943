"""What growth costs, in units of score: a price for parameters, and one for FLOPs if that is asked for."""

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from esper.kasmina import Catalogue, SlotTable
from esper.kasmina.host_flops import flops_per_sample
from esper.leyline import InputError, rent


@dataclass(frozen=True, slots=True)
class Pricing:
    """The prices, and the size of the model that they relate to."""

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
