"""Finding out, with one forward pass, where slots can go and what shapes they carry."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from esper.kasmina.sites import Family, SiteShape, infer_family, site_shape
from esper.leyline import InputError, unknown_name

Example = Tensor | Sequence[Any] | Mapping[str, Any]
"""One batch: the model's only argument, a sequence of positional ones, or a mapping of keyword ones."""
Where = Sequence[str] | Mapping[str, str]
"""Submodule names, or names with the family that each one's output belongs to."""


def call_with(model: nn.Module, example: Example) -> Any:
    """`model` applied to `example`."""
    if isinstance(example, Tensor):
        return model(example)
    return model(**example) if isinstance(example, Mapping) else model(*example)


def probe_sites(model: nn.Module, at: Where, example: Example) -> dict[str, SiteShape]:
    """The site behind each submodule named in `at`; one clear error where there can be none."""
    families = dict(at) if isinstance(at, Mapping) else dict.fromkeys(at)
    names = [at] if isinstance(at, str) else list(at)
    if isinstance(at, str) or not names or len(families) != len(names):
        raise InputError(f"`at` must list one or more different submodule names; got {at!r}")
    modules = {name: module for name, module in model.named_modules(remove_duplicate=False) if name}
    outputs = _outputs(model, modules, example)
    batch = _batch_size(example)

    def read(name: str, family: str | None = None) -> SiteShape:
        return _read_site(modules[name], outputs[name], family, batch)

    sites: dict[str, SiteShape] = {}
    for name in names:
        if name not in modules:
            raise unknown_name("submodule", name, _usable(modules, read))
        if any(modules[name] is modules[other] for other in sites):
            raise InputError(f"submodule {name!r} is listed in `at` under another name too; list it once")
        try:
            sites[name] = read(name, families[name])
        except InputError as error:
            hint = ", ".join(_usable(modules, read)) or "no submodule of this model"
            raise InputError(f"no slot can go after {name!r}: {error}. Slots can go after: {hint}") from None
    return sites


def _outputs(model: nn.Module, modules: Mapping[str, nn.Module], example: Example) -> dict[str, list[Any]]:
    """What each submodule returned, call by call. Modes, statistics and random state stay as they were."""
    outputs: dict[str, list[Any]] = {name: [] for name in modules}
    training = {module: module.training for module in model.modules()}
    with ExitStack() as stack:
        for name, module in modules.items():
            hook = module.register_forward_hook(lambda _m, _i, output, name=name: outputs[name].append(_brief(output)))
            stack.callback(hook.remove)
        stack.enter_context(torch.random.fork_rng())
        stack.enter_context(torch.no_grad())
        model.eval()
        try:
            call_with(model, example)
        finally:
            for module, mode in training.items():
                module.training = mode
    return outputs


def _brief(output: Any) -> Any:
    """The shape and dtype of a tensor, without holding on to its memory."""
    return output.to("meta") if isinstance(output, Tensor) else output


def _read_site(module: nn.Module, calls: list[Any], family: str | None, batch: int) -> SiteShape:
    if not calls:
        raise InputError("the model did not call it on the example")
    for output in calls:
        if not isinstance(output, Tensor):
            raise InputError(f"its output is a {type(output).__name__}, not one tensor")
        if not output.is_floating_point():
            raise InputError(f"its output is a tensor of {output.dtype}, not of floating-point numbers")
    if family is not None and family not in list(Family):
        raise unknown_name("family", family, list(Family))
    shapes = {tuple(output.shape) for output in calls}
    if len(shapes) > 1:
        raise InputError(f"it is called several times with different shapes: {sorted(shapes)}")
    shape = shapes.pop()
    return site_shape(Family(family) if family else infer_family(module, shape), shape, batch)


def _usable(modules: Mapping[str, nn.Module], read: Any) -> list[str]:
    usable = []
    for name in modules:
        try:
            read(name)
        except InputError:
            continue
        usable.append(name)
    return usable


def _batch_size(example: Example) -> int:
    """The first axis of the first tensor in the example; 0, which matches nothing, where there is none."""
    values = [example] if isinstance(example, Tensor) else example.values() if isinstance(example, Mapping) else example
    return next((value.shape[0] for value in values if isinstance(value, Tensor) and value.ndim), 0)
