"""Finding what a slot could be connected with: tensors earlier in the same forward pass that can be joined to it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from esper.kasmina.probe import Example, batch_size, call_with
from esper.kasmina.random_state import keeping_random_state
from esper.kasmina.sites import Family, Port, Reach, SiteShape, Source, family_at, site_shape
from esper.leyline import InputError, unknown_name

Sources = Mapping[str, Mapping[str, str]]
"""By slot: the submodules whose outputs are its "near" and "far" source; "NAME:input" means what NAME is given."""
REACHES: tuple[Reach, ...] = ("near", "far")
_INPUT = ":input"


@dataclass(frozen=True, slots=True, eq=False)
class _Event:
    """A submodule was given, or returned, a tensor."""

    index: int
    path: str
    port: Port
    argument: int | str
    tensor: Tensor
    version: int
    in_graph: bool
    """Whether gradients were recorded there, as far as they were at the beginning of the pass."""

    @property
    def changed(self) -> bool:
        """Whether the tensor has been written into since."""
        return self.tensor._version != self.version


@dataclass(slots=True)
class _Trace:
    """What happened in one forward pass, in order, and what ran again in its backward pass."""

    events: list[_Event] = field(default_factory=list)
    began: dict[str, int] = field(default_factory=dict)
    """By submodule: how many events there were before its first call."""
    calls: dict[str, int] = field(default_factory=dict)
    recomputed: set[str] = field(default_factory=set)
    _first: dict[tuple[str, Port], _Event] = field(default_factory=dict)
    _touching: dict[int, list[_Event]] = field(default_factory=dict)

    def add(self, path: str, port: Port, argument: int | str, tensor: Tensor) -> None:
        """Note a tensor."""
        index, in_graph = len(self.events), torch.is_grad_enabled()
        event = _Event(index, path, port, argument, tensor, tensor._version, in_graph)
        self.events.append(event)
        self._first.setdefault((path, port), event)
        self._touching.setdefault(id(tensor), []).append(event)  # which events keep alive, so that ids stay unique

    def find(self, path: str, port: Port) -> _Event | None:
        """The first tensor that the submodule was given or returned."""
        return self._first.get((path, port))

    def family(self, tensor: Tensor, modules: Mapping[str, nn.Module]) -> Family | None:
        """What the layers that made or used this very tensor say of it; None if they do not tell."""
        touching = self._touching[id(tensor)]
        readings = {family_at(modules[event.path], tuple(tensor.shape), event.port) for event in touching} - {None}
        if not readings and tensor.ndim in (2, 4):
            return Family.FEATURES if tensor.ndim == 2 else Family.CONV2D
        return readings.pop() if len(readings) == 1 else None


def find_sources(
    model: nn.Module, sites: Mapping[str, SiteShape], example: Example, asked: Sources | None = None
) -> dict[str, dict[Reach, Source]]:
    """The sources of each site, by reach. A pass in train mode and one in eval mode must agree on them."""
    _check_asked(model, sites, asked or {})
    finders = [_Finder(model, sites, trace, batch_size(model, example)) for trace in _traces(model, example)]
    found: dict[str, dict[Reach, Source]] = {}
    for path in sites:
        wanted = (asked or {}).get(path, {})
        choices = [finder.choose(path, wanted) for finder in finders]
        agreed = {reach: _merged([choice.get(reach) for choice in choices]) for reach in REACHES}
        found[path] = {reach: source for reach, source in agreed.items() if source is not None}
    return found


def params_around(model: nn.Module, paths: Sequence[str]) -> int:
    """Parameters of the smallest part of `model` that holds all these submodules."""
    parents = [path.split(".")[:-1] for path in paths]
    shared = [names[0] for names in takewhile(lambda names: len(set(names)) == 1, zip(*parents, strict=False))]
    return sum(parameter.numel() for parameter in model.get_submodule(".".join(shared)).parameters())


def _merged(readings: list[Source | None]) -> Source | None:
    """The source that all passes agree on."""
    first = readings[0]
    if first is None or any(other is None or _place(other) != _place(first) for other in readings):
        return None
    changed = any(other is not None and other.changed for other in readings)
    return Source(first.path, first.port, first.argument, first.shape, changed)


def _place(source: Source) -> tuple[object, ...]:
    return source.path, source.port, source.argument, source.shape


class _Finder:
    """Chooses sources by what one pass showed."""

    def __init__(self, model: nn.Module, sites: Mapping[str, SiteShape], trace: _Trace, batch: int) -> None:
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._sites = sites
        self._trace = trace
        self._batch = batch

    def choose(self, path: str, wanted: Mapping[str, str]) -> dict[Reach, Source]:
        """The near and the far source of the site; those that were asked for, or else the usual ones."""
        events: dict[Reach, _Event | None] = {"near": self._near(path), "far": self._far(path)}
        for reach in REACHES:
            if reach in wanted:
                events[reach] = self._asked(path, wanted[reach])
        near, far = events["near"], events["far"]
        if near is not None and far is not None and near.tensor is far.tensor:
            events["near"] = None
        return {reach: self._source(event, path) for reach, event in events.items() if event is not None}

    def _source(self, event: _Event, path: str) -> Source:
        shape = site_shape(self._sites[path].family, tuple(event.tensor.shape), self._batch)
        return Source(event.path, event.port, event.argument, shape, event.changed)

    def _near(self, path: str) -> _Event | None:
        """What the submodule of the slot before, of which it is no part, was given; of the first slot its own."""
        ends = {site: event.index for site in self._sites if (event := self._trace.find(site, "output")) is not None}
        earlier = [site for site in ends if ends[site] < ends.get(path, 0) and _apart(site, path)]
        event = self._trace.find(max(earlier, key=lambda site: ends[site], default=path), "input")
        return event if event is not None and self._obstacle(event, path) is None else None

    def _far(self, path: str) -> _Event | None:
        """The earliest tensor of the pass that can be joined to the site."""
        return next((event for event in self._trace.events if self._obstacle(event, path) is None), None)

    def _asked(self, path: str, name: str) -> _Event:
        port: Port = "input" if name.endswith(_INPUT) else "output"
        event = self._trace.find(name.removesuffix(_INPUT), port)
        problem = "it never runs, or is no plain tensor" if event is None else self._obstacle(event, path, told=True)
        if event is not None and problem is None:
            return event
        places = dict.fromkeys(
            f"{other.path}{_INPUT if other.port == 'input' else ''}"
            for other in self._trace.events
            if self._obstacle(other, path, told=True) is None
        )
        raise InputError(
            f"sources: {name!r} cannot be joined to what {path!r} returns: {problem}. "
            f"What can: {', '.join(places) or 'nothing in this model'}"
        )

    def _obstacle(self, event: _Event, path: str, *, told: bool = False) -> str | None:
        """Why the tensor cannot be joined to the site, or None; `told`: its family need not be clear by itself."""
        site, trace, tensor = self._sites[path], self._trace, event.tensor
        target = trace.find(path, "output")
        if target is None or trace.calls[path] != 1 or trace.calls[event.path] != 1:
            return "both must run exactly once in a pass"
        if event.index >= trace.began[path] and not (event.path == path and event.port == "input"):
            return "it is not there yet when the submodule of the slot begins"
        if not event.in_graph or not target.in_graph:
            return "no gradients are recorded there in the forward pass"
        if {event.path, path} & trace.recomputed:
            return "activations there are computed again in the backward pass"
        if not tensor.is_floating_point():
            return f"it holds {tensor.dtype}, not floating-point numbers"
        family = trace.family(tensor, self._modules)
        if family is not site.family and not (told and family is None):
            return f"it is {family or 'of no family that could be told'}, and the slot is {site.family}"
        return _mismatch(tuple(tensor.shape), tuple(target.tensor.shape), site.family, self._batch)


def _apart(one: str, other: str) -> bool:
    """Whether neither of two submodules is a part of the other."""
    return not f"{one}.".startswith(f"{other}.") and not f"{other}.".startswith(f"{one}.")


def _mismatch(source: tuple[int, ...], target: tuple[int, ...], family: Family, batch: int) -> str | None:
    """Why tensors of these shapes cannot be joined, or None."""
    if len(source) != len(target) or source[0] != target[0] or (batch and source[0] != batch):
        return f"its shape is {list(source)}, that of the slot {list(target)}: axes or batches differ"
    if family is Family.FEATURES and source[:-1] != target[:-1]:
        return f"its shape is {list(source)}, that of the slot {list(target)}: positions differ"
    if not batch and family is not Family.FEATURES:
        return "the model takes time first, so samples could be mixed"
    return None


def _check_asked(model: nn.Module, sites: Mapping[str, SiteShape], asked: Sources) -> None:
    paths = [path for path, _ in model.named_modules(remove_duplicate=False)]
    for slot, wanted in asked.items():
        if slot not in sites:
            raise unknown_name("slot in sources", slot, sites)
        if not isinstance(wanted, Mapping):
            raise InputError(f"sources[{slot!r}] must be a mapping, as in {{'far': 'layer1'}}; got {wanted!r}")
        for reach, name in wanted.items():
            if reach not in REACHES:
                raise unknown_name(f"source of {slot!r}", reach, REACHES)
            if not isinstance(name, str) or name.removesuffix(_INPUT) not in paths:
                raise unknown_name("submodule in sources", name, paths[1:])


def _traces(model: nn.Module, example: Example) -> list[_Trace]:
    """What happens in train and in eval mode; modes, buffers and random state stay as they were."""
    training = {module: module.training for module in model.modules()}
    # Parts that are kept in eval mode while the rest is trained, such as frozen ones, stay in it.
    while_trained = training if any(training.values()) else dict.fromkeys(training, True)
    try:
        _set_modes(dict.fromkeys(training, False))
        traces = [_trace(model, example)]
        _set_modes(while_trained)
        # An example of one sample is enough to grow by, but not for every layer to be trained with.
        with suppress(ValueError, RuntimeError):
            traces.append(_trace(model, example))
    finally:
        _set_modes(training)
    return traces


def _set_modes(modes: Mapping[nn.Module, bool]) -> None:
    for module, training in modes.items():
        module.training = training


def _trace(model: nn.Module, example: Example) -> _Trace:
    trace = _Trace()
    with ExitStack() as stack:
        stack.enter_context(keeping_random_state(model))
        stack.enter_context(torch.enable_grad())
        with _watching(model, trace):
            result = call_with(model, example)
        again: set[str] = set()
        for path, module in model.named_modules():
            hook = module.register_forward_pre_hook(lambda _m, _a, path=path: again.add(path))
            stack.callback(hook.remove)
        _run_backward(model, result)
        trace.recomputed = again
    return trace


@contextmanager
def _watching(model: nn.Module, trace: _Trace) -> Iterator[None]:
    def note(path: str, port: Port, argument: int | str, value: Any) -> None:
        if isinstance(value, Tensor) and not value.is_nested and value.ndim >= 2:
            trace.add(path, port, argument, value)

    def before(path: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            trace.calls[path] = trace.calls.get(path, 0) + 1
            trace.began.setdefault(path, len(trace.events))
            for position, value in enumerate(args):
                note(path, "input", position, value)
            for keyword, value in kwargs.items():
                note(path, "input", keyword, value)

        return hook

    with ExitStack() as stack:
        for path, module in model.named_modules(remove_duplicate=False):
            stack.callback(module.register_forward_pre_hook(before(path), with_kwargs=True).remove)
            behind = module.register_forward_hook(lambda _m, _a, out, path=path: note(path, "output", 0, out))
            stack.callback(behind.remove)
        yield


def _run_backward(model: nn.Module, result: Any) -> None:
    """A backward pass that leaves no gradients behind; where there is none, nothing can be recomputed in it."""
    outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not outputs or not weights:
        return
    try:
        torch.autograd.grad([leaf.float().sum() for leaf in outputs], weights, allow_unused=True)
    except RuntimeError:
        # Reentrant checkpointing knows no such gradients; it shows by running without any in the forward pass.
        return
