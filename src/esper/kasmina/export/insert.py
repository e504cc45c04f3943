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


class Scaled(nn.Module):
    """A seed that was kept before it was blended in as a whole: `factor * seed(h)`."""

    def __init__(self, seed: nn.Module, factor: float) -> None:
        super().__init__()
        self.seed = seed
        self.factor = factor

    def forward(self, h: Tensor) -> Tensor:
        """The part of its residual that counts."""
        result: Tensor = self.factor * self.seed(h)
        return result


def insert_seed(model: nn.Module, path: str, seed: nn.Module) -> None:
    """Let the submodule `path` of `model` return `h + seed(h)` where it returned `h`.

    It keeps its names, attributes and children, and becomes an instance of a subclass of its class; a sequence
    gets one more layer instead. Where an earlier growth has left seeds already, this one comes after them.
    The seed moves to the device of the submodule.
    """
    module = model.get_submodule(path)
    seed.to(next((p.device for part in (module, model) for p in part.parameters()), torch.device("cpu")))
    count = sum(name.startswith(SEED_NAME) for name, _ in module.named_children())
    kind: Any = type(module)
    if kind.forward is nn.Sequential.forward:
        module.add_module(seed_name(count), Residual(seed))
        return
    module.__class__ = grown_class(kind.__base__ if count else kind, count + 1)
    module.add_module(seed_name(count), seed)


def seed_name(index: int) -> str:
    """What the child is called that holds seed number `index` of a submodule."""
    return SEED_NAME if index == 0 else f"{SEED_NAME}_{index + 1}"


@cache
def grown_class(kind: Any, seeds: int) -> Any:
    """The subclass of `kind` whose instances add what their seeds make of it, one after another, to its output."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        h = kind.forward(self, *args, **kwargs)
        for index in range(seeds):
            h = h + getattr(self, seed_name(index))(h).to(h.dtype)
        return h

    def reduce(self: Any, _protocol: Any) -> Any:
        # By the class it was made from: pickle finds classes by name, and this one has no place to be found in.
        return empty_grown, (kind, seeds), self.__getstate__()

    members = {"forward": forward, "__reduce_ex__": reduce, "__module__": kind.__module__}
    return type(f"Grown{kind.__name__}", (kind,), members)


def empty_grown(kind: Any, seeds: int) -> Any:
    """An instance of the grown subclass of `kind` without anything in it yet, for copying and unpickling."""
    grown = grown_class(kind, seeds)
    return grown.__new__(grown)
