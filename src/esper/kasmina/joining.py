"""Joining a branch to a tensor further on. This file is copied into emitted code, so it uses nothing but torch."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch.nn.functional as F
from torch import Tensor, nn


def fit_positions(delta: Tensor, h: Tensor) -> Tensor:
    """`delta [N, C, ...]` with as many positions as `h`, to which it is to be added.

    Along an axis with too many of them they are averaged, along one with too few they are repeated.
    """
    have, want = tuple(delta.shape[2:]), tuple(h.shape[2:])
    if have == want:
        return delta
    fewer = tuple(map(min, have, want))
    if fewer != have:
        pool: Callable[..., Tensor] = F.adaptive_avg_pool1d if len(fewer) == 1 else F.adaptive_avg_pool2d
        delta = pool(delta, fewer)
    return delta if fewer == want else F.interpolate(delta, want, mode="nearest")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a module, which is found whether it is passed by position or by name."""

    position: int
    name: str

    @classmethod
    def of(cls, module: nn.Module, argument: int | str) -> Self:
        """The argument that has this position or name; the one that it does not have is one that nobody uses."""
        parameters = inspect.signature(module.forward).parameters.values()
        names = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
        if isinstance(argument, int):
            return cls(argument, names[argument] if argument < len(names) else "")
        return cls(names.index(argument) if argument in names else sys.maxsize, argument)

    def among(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What is passed for it; None if nothing is."""
        return args[self.position] if self.position < len(args) else kwargs.get(self.name)
