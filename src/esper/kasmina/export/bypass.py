"""Putting kept bypasses into a network: seeds that read an earlier tensor of the pass and are added to a later one.

Between layers of one sequence the layers that a bypass leads around become one module, which also holds the seed.
Anywhere else the module that has the tensor hands it on, by a wire, to the one it is added to. This file is copied into
emitted code, so it uses nothing but torch.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from esper.kasmina.export.insert import insert_seed, make_grown, move_beside, original_class, runs_in_row
from esper.kasmina.sites import Source, common_path
from esper.kasmina.taps import Argument, fit_positions
from esper.kasmina.torch_private import own_children


@dataclass(frozen=True, slots=True)
class Bypass:
    """A seed between two places of a network: what `path` returns becomes `h + seed(source)`."""

    source: Source
    path: str
    seed: nn.Module


def insert_bypasses(model: nn.Module, bypasses: Sequence[Bypass], *, nest: bool = True) -> None:
    """Put all of them into `model`, after the seeds that refine: paths are those that it has before.

    Nesting changes the names of layers in a sequence; without it, everything keeps its place and its name.
    """
    places = [_common_row(model, bypass) if nest else None for bypass in bypasses]
    spans: dict[str, list[Span]] = {}
    for bypass, place in zip(bypasses, places, strict=True):
        if place is None:
            _insert_wired(model, bypass)
        else:
            row, start, end = place
            move_beside(bypass.seed, model.get_submodule(bypass.path), model)
            spans.setdefault(row, []).append(Span(start, end, bypass.source.changed, bypass.seed))
    # All are found before any is changed: layers of an outer row take the inner rows with them.
    find = model.get_submodule
    rows = [(find(row), find(row.rpartition(".")[0]), own) for row, own in spans.items()]
    for layers, around, own in rows:
        if isinstance(around, Bypassed):
            around.add(own)
        else:
            _nest(layers, own)


def branch_output(seed: nn.Module, source: Tensor, h: Tensor) -> Tensor:
    """What a seed makes of an earlier tensor, ready to be added to `h`."""
    return fit_positions(seed(source.to(h)), h).to(h.dtype)


# In one sequence: nested modules.


@dataclass(frozen=True, slots=True)
class Span:
    """A seed around the layers `start` to `end - 1` of a row."""

    start: int
    end: int
    changed: bool
    """Whether these layers write into what they are given, so that the seed needs a copy."""
    seed: nn.Module


class Bypassed(nn.Module):
    """Layers in a row with branches around them: `y = layers(x) + branch(x)`; a branch may also leave out the ends."""

    def __init__(self, layers: nn.Sequential, spans: Iterable[Span]) -> None:
        super().__init__()
        self.layers = layers
        self.branches = nn.ModuleList()
        self.spans: list[tuple[int, int, bool]] = []
        """Of each branch: the layer whose input it reads, the number of layers after which it is added, and whether it
        needs a copy of what it reads."""
        self.add(spans)

    def add(self, spans: Iterable[Span]) -> None:
        for span in spans:
            self.branches.append(span.seed)
            self.spans.append((span.start, span.end, span.changed))

    def forward(self, h: Tensor) -> Tensor:
        read: dict[int, Tensor] = {}
        for index, layer in enumerate(self.layers):
            for number, (start, _, copies) in enumerate(self.spans):
                if start == index:
                    read[number] = h.clone() if copies else h
            h = layer(h)
            for number, branch in enumerate(self.branches):
                if self.spans[number][1] == index + 1:
                    h = h + branch_output(branch, read.pop(number), h)
        return h


def _common_row(model: nn.Module, bypass: Bypass) -> tuple[str, int, int] | None:
    """The sequence in which a bypass begins and ends, with the layers around which it leads; None if there is none."""
    source = bypass.source
    ends = dict(_places(model, bypass.path, output=True))
    for row, start in _places(model, source.path, output=source.port == "output"):
        if start < ends.get(row, 0):
            return row, start, ends[row]
    return None


def _places(model: nn.Module, path: str, *, output: bool) -> list[tuple[str, int]]:
    """All names for what a submodule is given, or returns: a sequence, and the layer of it that would be next.

    What the last layer of a sequence returns, the sequence returns, and so on outwards.
    """
    found = []
    module = model.get_submodule(path)
    if runs_in_row(module):
        found.append((path, len(own_children(module)) if output else 0))
    while path:
        path, _, name = path.rpartition(".")
        row = model.get_submodule(path)
        if not runs_in_row(row):
            break
        names = list(own_children(row))
        place = names.index(name) + output
        found.append((path, place))
        if place != (len(names) if output else 0):
            break
    return found


def _nest(row: nn.Module, spans: list[Span]) -> None:
    """Make one module of the layers of each group of spans that overlap."""
    layers = [(name, layer) for name, layer in own_children(row).items() if layer is not None]
    names = [name for name, _ in layers]
    nested: dict[int, tuple[int, str, nn.Module]] = {}
    for group in _overlapping(spans):
        start, end = group[0].start, max(span.end for span in group)
        inner = [replace(span, start=span.start - start, end=span.end - start) for span in group]
        module = Bypassed(nn.Sequential(OrderedDict(layers[start:end])), inner)
        module.training = module.layers.training = row.training
        name = names[start] if end - start == 1 else f"{names[start]}_to_{names[end - 1]}"
        nested[start] = (end, name, module)
    own_children(row).clear()
    index = 0
    while index < len(layers):
        following, name, layer = nested.get(index, (index + 1, *layers[index]))
        row.add_module(name, layer)
        index = following


def _overlapping(spans: Iterable[Span]) -> list[list[Span]]:
    groups: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: span.start):
        if groups and span.start < max(other.end for other in groups[-1]):
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


# Anywhere else: wires.


class Wire:
    """Carries a tensor from one place of a forward pass to a later one; passes in other threads do not meet it."""

    def __init__(self) -> None:
        self._held: dict[int, Tensor] = {}
        self._passes: dict[int, bool] = {}

    def __reduce__(self) -> Any:
        return Wire, ()

    def begin(self) -> None:
        self._passes[_pass_id()] = True

    def put(self, tensor: Tensor) -> None:
        self._held[_pass_id()] = tensor

    def take(self) -> Tensor | None:
        """The tensor that was put last, which is held no longer; None if this pass has left it out."""
        key = _pass_id()
        if key not in self._held:  # put by a part of the same pass that is compiled, or is not, unlike this one
            key = next(iter(self._held)) if key == _COMPILED and len(self._held) == 1 else _COMPILED
        if key not in self._held and not self._passes:
            raise RuntimeError("a grown seed was run without the part of the network that it reads from")
        return self._held.pop(key, None)

    def drop(self) -> None:
        """A pass has ended: nothing of it is held any more."""
        for key in (_pass_id(), _COMPILED):
            self._passes.pop(key, None)
            self._held.pop(key, None)


_COMPILED = 0
"""Stands for the thread of a compiled pass: a compiler cannot follow the question which one it is."""


def _pass_id() -> int:
    return _COMPILED if torch.compiler.is_compiling() else threading.get_ident()


class Sender:
    """Puts an argument of a module, or what it returns, on a wire."""

    def __init__(self, wire: Wire, source: Source, module: nn.Module) -> None:
        self.wire = wire
        self.output = source.port == "output"
        self.copies = source.changed
        self.argument = Argument.of(module, source.argument)

    def see_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.output:
            self._put(self.argument.among(args, kwargs))

    def see_output(self, output: Any) -> None:
        if self.output:
            self._put(output)

    def _put(self, tensor: Tensor) -> None:
        self.wire.put(tensor.clone() if self.copies else tensor)


class Wired(nn.Module):
    """A seed that reads what comes over a wire; the tensor that it is called with only says what it has to fit."""

    def __init__(self, seed: nn.Module, wire: Wire) -> None:
        super().__init__()
        self.seed = seed
        self.wire = wire

    def forward(self, h: Tensor) -> Tensor:
        source = self.wire.take()
        return torch.zeros_like(h) if source is None else branch_output(self.seed, source, h)


def _insert_wired(model: nn.Module, bypass: Bypass) -> None:
    wire = Wire()
    giver = make_grown(model.get_submodule(bypass.source.path))
    giver.grown_senders += (Sender(wire, bypass.source, giver),)
    insert_seed(model, bypass.path, Wired(bypass.seed, wire))
    enclosing = make_grown(_enclosing(model, bypass.source.path, bypass.path))
    enclosing.grown_wires += (wire,)


def _enclosing(model: nn.Module, first: str, second: str) -> nn.Module:
    """The innermost module that runs both: its pass begins before the source is there and ends after it is used."""
    common = common_path(first, second)
    while common and original_class(model.get_submodule(common)).forward is nn.Module.forward:
        common = common.rpartition(".")[0]
    return model.get_submodule(common)
