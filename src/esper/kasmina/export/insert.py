"""Putting a kept seed into a module. This file is copied into emitted code, so it uses nothing but torch."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

SEED_NAME = "grown_seed"
"""Name of the child that a submodule with a seed has, and so of its entries in the state dict."""


class Residual(nn.Module):
    """`h + seed(h)`, as the last layer of a sequence."""

    def __init__(self, seed: nn.Module) -> None:
        super().__init__()
        self.seed = seed

    def forward(self, h: Tensor) -> Tensor:
        """The input plus what the seed adds to it."""
        result: Tensor = h + self.seed(h).to(h.dtype)
        return result


def insert_seed(model: nn.Module, path: str, seed: nn.Module) -> None:
    """Let the submodule `path` of `model` return `h + seed(h)` where it returned `h`.

    It keeps its names, attributes and children, and becomes an instance of a subclass of its class; a sequence
    gets one more layer instead.
    """
    module = model.get_submodule(path)
    kind: Any = type(module)
    if kind.forward is nn.Sequential.forward:
        module.add_module(SEED_NAME, Residual(seed))
        return
    module.__class__ = grown_class(kind)
    module.add_module(SEED_NAME, seed)


@cache
def grown_class(kind: Any) -> Any:
    """The subclass of `kind` whose instances return `h + seed(h)` where those of `kind` return `h`."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        h = kind.forward(self, *args, **kwargs)
        return h + getattr(self, SEED_NAME)(h).to(h.dtype)

    def reduce(self: Any, _protocol: Any) -> Any:
        # By the class it was made from: pickle finds classes by name, and this one has no place to be found in.
        return empty_grown, (kind,), self.__getstate__()

    members = {"forward": forward, "__reduce_ex__": reduce, "__module__": kind.__module__}
    return type(f"Grown{kind.__name__}", (kind,), members)


def empty_grown(kind: Any) -> Any:
    """An instance of the grown subclass of `kind` without anything in it yet, for copying and unpickling."""
    grown = grown_class(kind)
    return grown.__new__(grown)


def give_bias(model: nn.Module, path: str) -> None:
    """Give the linear layer `path` a bias of zeros if it has none."""
    layer: Any = model.get_submodule(path)
    if layer.bias is None:
        weight = layer.weight
        layer.bias = nn.Parameter(torch.zeros(weight.shape[0], dtype=weight.dtype, device=weight.device))
