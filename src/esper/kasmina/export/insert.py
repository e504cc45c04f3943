"""Putting a kept seed into a module. This file is copied into emitted code, so it uses nothing but torch."""

from functools import cache, wraps
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
        result: Tensor = h + self.seed(h).to(h.dtype)
        return result


class Scaled(nn.Module):
    """A seed that was kept before it was blended in as a whole: `factor * seed(h)`."""

    def __init__(self, seed: nn.Module, factor: float) -> None:
        super().__init__()
        self.seed = seed
        self.factor = factor

    def forward(self, h: Tensor) -> Tensor:
        result: Tensor = self.factor * self.seed(h)
        return result


def insert_seed(model: nn.Module, path: str, seed: nn.Module) -> None:
    """Let the submodule `path` of `model` return `h + seed(h)` where it returned `h`.

    It keeps its names, attributes and children, and becomes an instance of a subclass of its class; a sequence
    gets one more layer instead. Where an earlier growth has left seeds already, this one comes after them.
    The seed moves to the device of the submodule.
    """
    module = model.get_submodule(path)
    move_beside(seed, module, model)
    count = sum(name.startswith(SEED_NAME) for name, _ in module.named_children())
    name = SEED_NAME if count == 0 else f"{SEED_NAME}_{count + 1}"
    if runs_in_row(module):
        module.add_module(name, Residual(seed))
        return
    grown = make_grown(module)
    grown.add_module(name, seed)
    grown.grown_seeds += (name,)


def move_beside(seed: nn.Module, *neighbours: nn.Module) -> None:
    """Move a seed to the device of the first of its neighbours that has weights."""
    seed.to(next((p.device for part in neighbours for p in part.parameters()), torch.device("cpu")))


def original_class(module: nn.Module) -> Any:
    kind: Any = type(module)
    return kind.grown_from if "grown_from" in vars(kind) else kind


def runs_in_row(module: nn.Module) -> bool:
    """Whether all that a module does is to run its children one after another."""
    return original_class(module).forward is nn.Sequential.forward


def make_grown(module: Any) -> Any:
    """The module itself, as an instance of the grown subclass of its class."""
    module.__class__ = grown_class(original_class(module))
    return module


@cache
def grown_class(kind: Any) -> Any:
    """The subclass of `kind` whose instances add what their seeds make of it, one after another, to its output.

    | of an instance | holds |
    |---|---|
    | grown_seeds | the names of its children that are seeds |
    | grown_senders | what hands its input or its output on to seeds elsewhere: see `bypass` |
    | grown_wires | what such seeds read from, from the beginning of its pass to its end, however it ends |
    """

    @wraps(kind.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            for wire in self.grown_wires:
                wire.begin()
            for sender in self.grown_senders:
                sender.see_input(args, kwargs)
            h = kind.forward(self, *args, **kwargs)
            for name in self.grown_seeds:
                h = h + getattr(self, name)(h).to(h.dtype)
            for sender in self.grown_senders:
                sender.see_output(h)
            return h
        finally:
            for wire in self.grown_wires:
                wire.drop()

    def reduce(self: Any, _protocol: Any) -> Any:
        # By the class it was made from: pickle finds classes by name, and this one has no place to be found in.
        return empty_grown, (kind,), self.__getstate__()

    nothing = {"grown_seeds": (), "grown_senders": (), "grown_wires": ()}
    members = {"forward": forward, "__reduce_ex__": reduce, "__module__": kind.__module__, "grown_from": kind}
    return type(f"Grown{kind.__name__}", (kind,), members | nothing)


def empty_grown(kind: Any) -> Any:
    """An instance of the grown subclass of `kind` without anything in it yet, for copying and unpickling."""
    grown = grown_class(kind)
    return grown.__new__(grown)
