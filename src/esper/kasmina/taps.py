"""Taps: how a seed that connects gets the earlier tensor it reads, and how its output is joined to a later one.

`fit_positions` and `Argument` are copied into emitted code, so they use nothing but torch.
"""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.sites import Source
from esper.leyline import InputError


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


class Tap:
    """Keeps one tensor of a pass for as long as the pass lasts, if somebody reads it.

    Its hooks are there from the start, because compiled models do not notice hooks that come later.
    """

    def __init__(self, source: Source, module: nn.Module) -> None:
        self.source = source
        self._argument = Argument.of(module, source.argument)
        self.readers = 0
        """Seeds that read it."""
        self.open = False
        self._tensor: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "open": False, "_tensor": None}

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        if self.open:
            self._keep(self._argument.among(args, kwargs))

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:  # noqa: ARG002
        """The hook behind a submodule whose output is read, seeds that sit there included."""
        if self.open:
            self._keep(output)

    def _keep(self, tensor: Any) -> None:
        if not isinstance(tensor, Tensor) or tensor.is_nested:
            raise InputError(f"{self.source}, which a seed reads, is no plain tensor in this pass")
        self._tensor = tensor.clone() if self.source.changed else tensor

    def begin(self) -> None:
        self.open, self._tensor = self.readers > 0, None

    def end(self) -> None:
        self.open, self._tensor = False, None

    def read(self, h: Tensor) -> Tensor | None:
        """The tensor, as the neighbours of `h` are; None if this pass has left it out, as layer dropout does."""
        if not self.open:
            raise InputError(
                f"a seed reads {self.source}, which has not run in this pass: run the whole model, and without "
                "activation checkpointing of the submodules that the seed connects"
            )
        return None if self._tensor is None else self._tensor.to(h)


class Pass:
    """The forward pass of a host: taps are open from its beginning to its end, however it ends."""

    def __init__(self) -> None:
        self.taps: list[Tap] = []

    def begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:  # noqa: ARG002
        for tap in self.taps:
            tap.begin()

    def end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:  # noqa: ARG002
        """The hook behind the host, also called when its pass raised."""
        for tap in self.taps:
            tap.end()


def lay_taps(host: nn.Module, sources: set[Source]) -> Pass:
    """Put the hooks of a tap for each source on `host`; slots that sit at the same place must be there already."""
    whole = Pass()
    if not sources:
        return whole
    host.register_forward_pre_hook(whole.begin, prepend=True)
    host.register_forward_hook(whole.end, always_call=True)
    for source in sorted(sources, key=str):
        module = host.get_submodule(source.path)
        tap = Tap(source, module)
        if source.port == "input":
            module.register_forward_pre_hook(tap.before, with_kwargs=True)
        else:
            module.register_forward_hook(tap.after)
        whole.taps.append(tap)
    return whole
