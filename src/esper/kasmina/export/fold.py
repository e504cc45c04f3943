"""Folding kept seeds into a copy of their host."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from esper.kasmina.export.insert import Scaled, insert_seed
from esper.kasmina.graft import GraftedModel
from esper.kasmina.growth import Site
from esper.kasmina.probe import Example, call_with
from esper.kasmina.random_state import keeping_random_state
from esper.kasmina.seed_state import remove_slots
from esper.kasmina.table import SlotTable
from esper.leyline import InputError, Stage

TOLERANCE = 1e-5
"""The most by which outputs may differ, relative to the largest of them (or to 1, if they are small)."""


@dataclass(frozen=True, slots=True)
class Folded:
    """A plain network, and how its seeds were put into it."""

    network: nn.Module
    inserted: dict[str, tuple[Site, nn.Module, float]]
    """Seeds with their alpha, by the path they sit behind."""


def fold(model: GraftedModel, example: Example, table: SlotTable | None = None) -> Folded:
    """A copy of the host with the seeds that were kept for good, and no hooks.

    Which those are the slot table says; another one than the model's own is for looking ahead. The output on the
    example is compared with that of the grown network; a model for which they differ is refused.
    """
    table = model.table if table is None else table
    folded = _fold(model, table)
    difference = _difference(model, table, folded.network, example)
    if not difference <= TOLERANCE:
        raise InputError(
            f"this model cannot be made plain: its output would change by {difference:.2g} of its size, because "
            f"{', '.join(folded.inserted) or 'it'} is used in a way that a copy with its seed inside does not follow"
        )
    return folded


def _fold(model: GraftedModel, table: SlotTable) -> Folded:
    network = _bare_copy(model.host)
    inserted = {}
    for index, site in enumerate(model.sites):
        if table.stage[0, index] == Stage.FOSSILIZED:
            seed = copy.deepcopy(model.slots[index].get_submodule("seed"))
            alpha = float(table.alpha[0, index])
            insert_seed(network, site.path, seed if alpha == 1 else Scaled(seed, alpha))
            inserted[site.path] = (site, seed, alpha)
    return Folded(network, inserted)


def _bare_copy(host: nn.Module) -> nn.Module:
    # Results that a module keeps from its last run hang on their graph, and torch copies no such tensors.
    kept = [value for module in host.modules() for value in vars(module).values()]
    results = {id(value): value.detach().clone() for value in kept if isinstance(value, Tensor) and value.grad_fn}
    try:
        network = copy.deepcopy(host, results)
    except Exception as error:
        raise InputError(f"this model cannot be copied, so it cannot be exported: {error}") from error
    remove_slots(network)
    network.zero_grad(set_to_none=True)
    return network


def _difference(model: GraftedModel, table: SlotTable, network: nn.Module, example: Example) -> float:
    """The largest difference of outputs on the example, relative to the largest output."""
    unfinished = model.table.occupied[0] & (table.stage[0] != Stage.FOSSILIZED)
    silent = dict.fromkeys(unfinished.nonzero().flatten().tolist(), 0.0)
    with model.override_alphas(silent):
        expected = _floats(_run(model.host, example))
    got = _floats(_run(network, example))
    if len(expected) != len(got) or any(a.shape != b.shape for a, b in zip(expected, got, strict=True)):
        return float("inf")
    size = max([1.0, *(float(a.abs().nan_to_num(0.0, 0.0).max()) for a in expected if a.numel())])
    return max((_gap(a, b) for a, b in zip(expected, got, strict=True) if a.numel()), default=0.0) / size


def _gap(expected: Tensor, got: Tensor) -> float:
    """The largest difference; infinities and NaN are equal to themselves, and infinitely far from all else."""
    same = (expected == got) | (expected.isnan() & got.isnan())
    return float(torch.where(same, 0.0, (expected - got).abs()).nan_to_num(torch.inf).max())


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
