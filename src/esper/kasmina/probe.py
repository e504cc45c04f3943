"""Finding out, with one forward pass, where slots can go and what shapes they carry."""

import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from esper.kasmina.keeping import evaluating, keeping_random_state
from esper.kasmina.sites import Family, SiteShape, infer_family, site_shape
from esper.kasmina.torch_private import tree_leaves, tree_map_only
from esper.leyline import InputError, first_line, unknown_name

Example = Tensor | Sequence[Any] | Mapping[str, Any]
"""One batch: the model's only argument, a sequence of positional ones, or a mapping of keyword ones."""
Where = Sequence[str] | Mapping[str, str]
"""Submodule names, or names with the family that each one's output belongs to."""


class ProbedSite(NamedTuple):
    """What one forward pass tells of the output of a submodule."""

    shape: SiteShape
    dtype: torch.dtype
    rectified: bool


def probe_sites(model: nn.Module, at: Where, example: Example) -> dict[str, ProbedSite]:
    """What there is behind each submodule named in `at`; one clear error where there can be no slot."""
    names = _names(at)
    families = at if isinstance(at, Mapping) else dict.fromkeys(names)
    seen = _Probe(model, example)
    sites: dict[str, ProbedSite] = {}
    for name in names:
        if name not in seen.modules:
            raise unknown_name("submodule", name, seen.usable())
        if any(seen.modules[name] is seen.modules[other] for other in sites):
            raise InputError(f"submodule {name!r} is listed in `at` under another name too; list it once")
        try:
            sites[name] = seen.read(name, families[name])
        except InputError as error:
            hint = ", ".join(seen.usable()) or "no submodule of this model"
            raise InputError(f"no slot can go after {name!r}: {error}. Slots can go after: {hint}") from None
    return sites


def check_initialised(model: nn.Module) -> None:
    """Refuse a model with lazy layers that have no weights yet."""
    lazy = [name for name, p in model.named_parameters() if is_lazy(p)]
    if lazy:
        raise InputError(
            f"{', '.join(lazy)} of this model have no shape yet; run a batch through it first, then make the optimizer"
        )


@dataclass(frozen=True, slots=True)
class CandidateSite:
    """A submodule behind which a slot could go."""

    path: str
    module: nn.Module
    shape: SiteShape
    returned: bool
    """Whether the model returns this very output: there is nothing behind it that could use what grows."""


def survey(model: nn.Module, example: Example) -> list[CandidateSite]:
    """Every submodule behind which a slot can go without a word about its family, in the order of their work."""
    seen = _Probe(model, example)
    found: dict[int, CandidateSite] = {}
    for name in sorted(seen.usable(), key=list(seen.outputs).index):
        if seen.batch and seen.outputs[name][0].shape[0] != seen.batch:  # position biases and the like, not samples
            continue
        module = seen.modules[name]
        found.setdefault(id(module), CandidateSite(name, module, seen.read(name).shape, name in seen.returned))
    return list(found.values())


def unclear_sites(model: nn.Module, example: Example) -> list[str]:
    """Submodules behind which a slot can go only if it is told which family their output belongs to."""
    seen = _Probe(model, example)
    clear = seen.usable()
    return [name for name in seen.usable(Family.FEATURES) if name not in clear]


def _names(at: Where) -> list[str]:
    names = list(at) if isinstance(at, Sequence | Mapping) and not isinstance(at, str) else []
    if not names or any(not isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise InputError("`at` must list one or more different submodule names, as in at=['layer1', 'layer2']")
    return names


@dataclass(frozen=True, slots=True)
class _Output:
    """What is kept of a tensor: nothing that holds on to its memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    nested: bool
    rectified: bool = field(compare=False)


def _brief(output: Any) -> Any:
    if not isinstance(output, Tensor):
        return output
    if output.is_nested:
        return _Output((), output.dtype, True, False)
    valued = output.numel() > 0 and not output.is_meta
    return _Output(tuple(output.shape), output.dtype, False, valued and bool((output >= 0).all()))


class _Probe:
    """What every submodule returned in one forward pass; modes, buffers and random state stay as they were."""

    def __init__(self, model: nn.Module, example: Example) -> None:
        self.modules = {name: module for name, module in model.named_modules(remove_duplicate=False) if name}
        self.batch = batch_size(model, example)
        self.outputs: dict[str, list[Any]] = {}
        """Call by call, in the order in which the submodules finished; ones that were not called come last."""
        self._last: dict[str, Any] = {}
        with ExitStack() as stack:
            for name, module in self.modules.items():
                hook = module.register_forward_hook(lambda _m, _i, output, name=name: self._note(name, output))
                stack.callback(hook.remove)
            try:
                result = evaluate_on(model, example)
            except Exception as error:
                raise InputError(f"the model could not run on the example: {first_line(error)}") from error
        self.outputs |= {name: [] for name in self.modules if name not in self.outputs}
        ids = {id(leaf) for leaf in tree_leaves(result)}
        self.returned = {name for name, last in self._last.items() if last() is not None and id(last()) in ids}
        """Submodules whose very output the model returned."""

    def _note(self, name: str, output: Any) -> None:
        self.outputs.setdefault(name, []).append(_brief(output))
        if isinstance(output, Tensor):
            self._last[name] = weakref.ref(output)

    def read(self, name: str, family: str | None = None) -> ProbedSite:
        """What a slot behind a submodule would meet; an error where there can be none."""
        calls = self.outputs[name]
        if not calls:
            raise InputError("the model did not call it on the example")
        for output in calls:
            if not isinstance(output, _Output):
                raise InputError(f"its output is a {type(output).__name__}, not one tensor")
            if output.nested or not output.dtype.is_floating_point:
                kind = "a nested tensor" if output.nested else f"a tensor of {output.dtype}"
                raise InputError(f"its output is {kind}, not a plain tensor of floating-point numbers")
        if family is not None and family not in list(Family):
            raise unknown_name("family", family, list(Family))
        if len(set(calls)) > 1:
            raise InputError(f"it is called several times with different shapes: {[list(c.shape) for c in calls]}")
        shape = calls[0].shape
        if len(shape) < 2:
            raise InputError(f"its output of shape {list(shape)} has no width beside the batch")
        found = site_shape(Family(family) if family else infer_family(self.modules[name], shape), shape, self.batch)
        return ProbedSite(found, calls[0].dtype, all(call.rectified for call in calls))

    def usable(self, family: str | None = None) -> list[str]:
        """The submodules behind which a slot can go."""
        usable = []
        for name in self.modules:
            with suppress(InputError):
                self.read(name, family)
                usable.append(name)
        return usable


def arguments_for(model: nn.Module, example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that an example stands for, where `model` is: it may have been moved to a device since."""
    devices = [parameter.device for parameter in model.parameters()]

    def placed(tensor: Tensor) -> Tensor:
        return tensor if not devices or tensor.device in devices else tensor.to(devices[0])

    args, kwargs = split_example(example)
    return tree_map_only(Tensor, placed, args), tree_map_only(Tensor, placed, kwargs)


def split_example(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments that an example stands for, as they are."""
    if isinstance(example, Tensor):
        return (example,), {}
    return ((), dict(example)) if isinstance(example, Mapping) else (tuple(example), {})


def call_with(model: nn.Module, example: Example) -> Any:
    """Run `model` on `example` with copies of its buffers, so that whatever it counts is not counted."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    return functional_call(model, buffers, *arguments_for(model, example))


def evaluate_on(model: nn.Module, example: Example, watch: AbstractContextManager[Any] | None = None) -> Any:
    """What `model` returns on `example` in eval mode; modes, buffers and random state stay as they were.

    `watch` is entered around the pass alone.
    """
    with evaluating(model), keeping_random_state(model), torch.no_grad(), watch or nullcontext():
        return call_with(model, example)


def batch_size(model: nn.Module, example: Example) -> int:
    """The first axis of the first tensor in the example, which is the batch by convention.

    0, which matches nothing, where there is none, or where a layer of the model takes time first.
    """
    if any(isinstance(m, nn.MultiheadAttention | nn.RNNBase) and not m.batch_first for m in model.modules()):
        return 0
    args, kwargs = split_example(example)
    values = (*args, *kwargs.values())
    return next((value.shape[0] for value in values if isinstance(value, Tensor) and value.ndim), 0)
