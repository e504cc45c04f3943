"""Folding kept seeds into a copy of their host."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from esper.kasmina.export.insert import insert_seed
from esper.kasmina.export.merge import merge_seed
from esper.kasmina.graft import GraftedModel, Site
from esper.kasmina.probe import Example, call_with
from esper.kasmina.random_state import keeping_random_state
from esper.kasmina.slot import Slot
from esper.leyline import InputError, Stage

TOLERANCE = 1e-5
"""The most by which outputs may differ, relative to the largest of them (or to 1, if they are small)."""


@dataclass(frozen=True, slots=True)
class Folded:
    """A plain network, and how its seeds were put into it."""

    network: nn.Module
    inserted: dict[str, tuple[Site, nn.Module]]
    """Seeds that are modules of their own, by the path they sit behind."""
    merged: dict[str, str]
    """Layers that took a seed into their weights, by the path it sat behind."""
    dropped: tuple[str, ...]
    """Paths of the slots whose seeds were not kept, and so left out."""


def fold(model: GraftedModel, example: Example) -> Folded:
    """A copy of the host with the seeds that were kept for good, and no hooks.

    Its output on the example is compared with that of the grown network; a model for which they differ is refused.
    """
    folded = _fold(model, merging=True)
    if folded.merged and _difference(model, folded.network, example) > TOLERANCE:
        folded = _fold(model, merging=False)  # someone reads the weights of that layer without calling it
    difference = _difference(model, folded.network, example)
    if not difference <= TOLERANCE:
        raise InputError(
            f"this model cannot be made plain: its output would change by {difference:.2g} of its size, because "
            f"{', '.join(folded.inserted) or 'it'} is used in a way that a copy with its seed inside does not follow"
        )
    return folded


def _fold(model: GraftedModel, *, merging: bool) -> Folded:
    kept = {i: site for i, site in enumerate(model.sites) if model.table.stage[0, i] == Stage.FOSSILIZED}
    occupied = model.table.occupied[0].tolist()
    dropped = tuple(site.path for i, site in enumerate(model.sites) if occupied[i] and i not in kept)
    network = _bare_copy(model.host)
    folded = Folded(network, {}, {}, dropped)
    # Merging first: it looks for layers by their exact class, which an inserted seed changes.
    for merge_now in (True, False):
        for index, site in kept.items():
            seed = copy.deepcopy(model.slots[index].get_submodule("seed"))
            target = merge_seed(network, site.path, seed) if merge_now and merging else None
            if target is not None:
                folded.merged[site.path] = target
            elif not merge_now and site.path not in folded.merged:
                insert_seed(network, site.path, seed)
                folded.inserted[site.path] = (site, seed)
    return folded


def _bare_copy(host: nn.Module) -> nn.Module:
    # Results that a module keeps from its last run hang on their graph, and torch copies no such tensors.
    kept = [value for module in host.modules() for value in vars(module).values()]
    results = {id(value): value.detach().clone() for value in kept if isinstance(value, Tensor) and value.grad_fn}
    try:
        network = copy.deepcopy(host, results)
    except Exception as error:
        raise InputError(f"this model cannot be copied, so it cannot be exported: {error}") from error
    for module in network.modules():
        for key, hook in list(module._forward_hooks.items()):
            if isinstance(getattr(hook, "__self__", None), Slot):
                del module._forward_hooks[key]
    network.zero_grad(set_to_none=True)
    return network


def _difference(model: GraftedModel, network: nn.Module, example: Example) -> float:
    """The largest difference of outputs on the example, relative to the largest output."""
    unfinished = model.table.occupied[0] & (model.table.stage[0] != Stage.FOSSILIZED)
    silent = dict.fromkeys(unfinished.nonzero().flatten().tolist(), 0.0)
    with model.override_alphas(silent):
        expected = _floats(_run(model.host, example))
    got = _floats(_run(network, example))
    if len(expected) != len(got) or any(a.shape != b.shape for a, b in zip(expected, got, strict=True)):
        return float("inf")
    size = max([1.0, *(float(a.abs().max()) for a in expected if a.numel())])
    gaps = [float((a - b).abs().nan_to_num(0.0).max()) for a, b in zip(expected, got, strict=True) if a.numel()]
    return max(gaps, default=0.0) / size


def _run(network: nn.Module, example: Example) -> Any:
    """The output in evaluation mode, in which nothing is counted; what is random is the same each time."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        with torch.no_grad(), keeping_random_state(network):
            return call_with(network, example)
    finally:
        for module, mode in modes.items():
            module.training = mode


def _floats(output: Any) -> list[Tensor]:
    leaves: Iterable[Any] = tree_leaves(output)
    return [leaf.double() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
