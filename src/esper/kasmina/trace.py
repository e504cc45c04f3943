"""Watching forward passes: which submodule is given and returns which tensor, when, and what each was made from."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from esper.kasmina.keeping import keeping_random_state, modes_of, set_modes
from esper.kasmina.probe import Example, call_with, split_example
from esper.kasmina.sites import Port
from esper.kasmina.torch_private import TorchDispatchMode, storage_id, tree_leaves, tree_map_only, writes_into

_MOST_INPUTS = 5
"""Of so many inputs of one length all combinations are shortened; of more, only those of the first ones."""
_EXAMPLE = 1
"""The bit of whatever was made from the example; those of events follow."""


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """A submodule was given, or returned, a tensor."""

    index: int
    path: str
    port: Port
    argument: int | str
    tensor: Tensor
    version: int
    in_graph: bool
    """Whether gradients were recorded there, as far as they were at the beginning of the pass."""
    made_from: int
    """The bits of the events whose tensors it was made from, its own included."""

    @property
    def changed(self) -> bool:
        return writes_into(self.tensor) != self.version

    @property
    def from_example(self) -> bool:
        """Whether it was made from the example; tables of positions and the like are not."""
        return bool(self.made_from & _EXAMPLE)

    def made_with(self, other: "Event") -> bool:
        return bool(self.made_from & _bit(other.index))


def _bit(index: int) -> int:
    return 2 << index


class _Flow(TorchDispatchMode):
    """Notes what each tensor of a pass was made from: a set of bits for each storage, so that views are covered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._bits: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no storage takes the place of another one

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.lead((args, kwargs), result)
        return result

    def lead(self, sources: Any, results: Any) -> None:
        """Note that `results` were made from `sources`; what was written in place is among the results."""
        bits = 0
        for tensor in _plain_tensors(sources):
            bits |= self.of(tensor)
        if bits:
            self.mark(results, bits)

    def mark(self, results: Any, bits: int) -> None:
        """Note that `results` were made from what these bits stand for, too."""
        for tensor in _plain_tensors(results):
            key = storage_id(tensor)
            if key not in self._bits:
                self._alive.append(tensor.untyped_storage())
            self._bits[key] = self._bits.get(key, 0) | bits

    def of(self, tensor: Tensor) -> int:
        return self._bits.get(storage_id(tensor), 0)


class _Unknown(_Flow):
    """Where operations cannot be watched: everything may have been made from everything before."""

    def __enter__(self) -> "_Unknown":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def of(self, tensor: Tensor) -> int:  # noqa: ARG002  # of any
        return -1


def _plain_tensors(tree: Any) -> list[Tensor]:
    return [
        leaf
        for leaf in tree_leaves(tree)
        if isinstance(leaf, Tensor) and not leaf.is_nested and leaf.layout is torch.strided
    ]


@dataclass(slots=True)
class Trace:
    """What happened in one forward pass, in order, and what ran again in its backward pass."""

    flow: _Flow
    events: list[Event] = field(default_factory=list)
    began: dict[str, int] = field(default_factory=dict)
    """By submodule: how many events there were before its first call."""
    calls: dict[str, int] = field(default_factory=dict)
    recomputed: set[str] = field(default_factory=set)
    _first: dict[tuple[object, ...], Event] = field(default_factory=dict)
    _touching: dict[int, list[Event]] = field(default_factory=dict)

    def add(self, path: str, port: Port, argument: int | str, tensor: Tensor) -> None:
        index, in_graph = len(self.events), torch.is_grad_enabled()
        self.flow.mark(tensor, _bit(index))
        event = Event(index, path, port, argument, tensor, writes_into(tensor), in_graph, self.flow.of(tensor))
        self.events.append(event)
        self._first.setdefault((path, port), event)
        self._first.setdefault((path, port, argument), event)
        self._touching.setdefault(id(tensor), []).append(event)  # which events keep alive, so that ids stay unique

    def find(self, path: str, port: Port) -> Event | None:
        """The first tensor that the submodule was given or returned."""
        return self._first.get((path, port))

    def twin(self, event: Event) -> Event | None:
        """What happened here at the place of an event in another pass."""
        return self._first.get((event.path, event.port, event.argument))

    def touching(self, tensor: Tensor) -> list[Event]:
        return self._touching[id(tensor)]


def trace_passes(model: nn.Module, example: Example, *, sequences: bool) -> list[Trace]:
    """What happens in eval and in train mode and, for `sequences`, with inputs of lengths that need not be the same.

    Modes, buffers and random state stay as they were.
    """
    example = _tracked(example)
    training = modes_of(model)
    # Parts that are kept in eval mode while the rest is trained, such as frozen ones, stay in it.
    while_trained = training if any(training.values()) else dict.fromkeys(training, True)
    try:
        set_modes(dict.fromkeys(training, False))
        traces = [_trace(model, example)]
        for other in _other_lengths(example) if sequences else ():
            with suppress(Exception):  # lengths that have to be the same, which is what most are
                traces.append(_trace_with(_Flow(), model, other, backward=False))
        set_modes(while_trained)
        # An example of one sample is enough to grow by, but not for every layer to be trained with.
        with suppress(ValueError, RuntimeError):
            traces.append(_trace(model, example))
    finally:
        set_modes(training)
    return traces


def _tracked(example: Example) -> Example:
    """The example, with copies of tensors that were made in inference mode, which no gradients can be recorded with."""
    args, kwargs = split_example(example)
    with torch.inference_mode(False):
        tracked: Example = tree_map_only(
            Tensor, lambda tensor: tensor.clone() if tensor.is_inference() else tensor, kwargs or list(args)
        )
    return tracked


def _other_lengths(example: Example) -> Iterator[Example]:
    """The example with some of the inputs of one length shortened: those of an encoder, say, and not of its decoder."""
    args, kwargs = split_example(example)
    inputs: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    sizes = {name: value.shape[1] for name, value in inputs.items() if isinstance(value, Tensor) and value.ndim > 1}
    for size in sorted(set(sizes.values())):
        alike = [name for name in sizes if sizes[name] == size][:_MOST_INPUTS]
        # The first is left as it is: it does not matter which side is the shorter one. One position would fit to any.
        for count in range(1, len(alike)) if size > 2 else ():
            for chosen in combinations(alike[1:], count):
                shorter = inputs | {name: inputs[name][:, 1:] for name in chosen}
                yield shorter if kwargs else list(shorter.values())


def _trace(model: nn.Module, example: Example) -> Trace:
    try:
        return _trace_with(_Flow(), model, example)
    except Exception:
        # Kernels that torch cannot look into; if something else is the matter, it will be again.
        return _trace_with(_Unknown(), model, example)


def _trace_with(flow: _Flow, model: nn.Module, example: Example, *, backward: bool = True) -> Trace:
    trace = Trace(flow)
    flow.mark(example, _EXAMPLE)
    with ExitStack() as stack:
        stack.enter_context(keeping_random_state(model))
        torch.default_generator.manual_seed(0)  # layers that are left out at random are the same ones in every process
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        with _watching(model, trace), flow:
            result = call_with(model, example)
        again: set[str] = set()
        for path, module in model.named_modules():
            hook = module.register_forward_pre_hook(lambda _m, _a, path=path: again.add(path))
            stack.callback(hook.remove)
        if backward:
            _run_backward(model, result)
        trace.recomputed = again
    return trace


@contextmanager
def _watching(model: nn.Module, trace: Trace) -> Iterator[None]:
    def note(path: str, port: Port, given: Iterable[tuple[int | str, Any]]) -> None:
        for argument, value in given:
            if isinstance(value, Tensor) and not value.is_nested and value.ndim >= 2:
                trace.add(path, port, argument, value)

    def before(path: str, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        trace.calls[path] = trace.calls.get(path, 0) + 1
        trace.began.setdefault(path, len(trace.events))
        note(path, "input", [*enumerate(args), *kwargs.items()])

    def behind(path: str, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        trace.flow.lead((args, kwargs), output)  # also where a kernel of its own made it
        note(path, "output", [(0, output)])

    with ExitStack() as stack:
        for path, module in model.named_modules(remove_duplicate=False):
            stack.callback(module.register_forward_pre_hook(partial(before, path), with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(partial(behind, path), with_kwargs=True).remove)
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
