"""Folding kept seeds into a copy of their host."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from esper.kasmina.blueprints.registry import find_blueprint
from esper.kasmina.export.bypass import Bypass, insert_bypasses
from esper.kasmina.export.insert import Scaled, insert_seed
from esper.kasmina.graft import GraftedModel
from esper.kasmina.probe import Example, evaluate_on
from esper.kasmina.seed_state import remove_slots
from esper.kasmina.sites import Site, Source
from esper.kasmina.table import SlotTable
from esper.kasmina.torch_private import tree_leaves
from esper.leyline import InputError, Stage

TOLERANCE = 1e-5
"""The most by which outputs may differ, relative to the largest of them (or to 1, if they are small)."""


@dataclass(frozen=True, slots=True)
class KeptSeed:
    """A copy of a seed that was kept for good."""

    site: Site
    module: nn.Module
    alpha: float
    source: Source | None
    """What it reads; None if it refines the output of its own submodule."""


@dataclass(frozen=True, slots=True)
class Folded:
    """A plain network, and how its seeds were put into it."""

    network: nn.Module
    inserted: dict[str, KeptSeed]
    """By the path they sit behind."""
    nested: bool = True
    """Whether bypasses in a sequence became nested modules."""


def fold(model: GraftedModel, example: Example, table: SlotTable | None = None) -> Folded:
    """A copy of the host with the seeds that were kept for good, and no hooks.

    Which those are the slot table says; another one than the model's own is for looking ahead. The output on the
    example is compared with that of the grown network; a model for which they differ is refused.
    """
    table = model.table if table is None else table
    expected = _expected(model, table, example)
    for nest in (True, False):
        network, kept = bare_copy(model.host), kept_seeds(model, table)
        insert_kept(network, kept, nest=nest)
        try:
            difference = _difference(expected, _outputs(network, example))
        except Exception:
            # A parent may know the layers of its sequence by name or number: then they have to stay where they are.
            if nest:
                continue
            raise
        if difference <= TOLERANCE:
            return Folded(network, kept, nest)
    raise InputError(
        f"this model cannot be made plain: its output would change by {difference:.2g} of its size, because "
        f"{', '.join(kept) or 'it'} is used in a way that a copy with its seed inside does not follow"
    )


def kept_seeds(model: GraftedModel, table: SlotTable) -> dict[str, KeptSeed]:
    """Copies of the seeds that were kept for good, as `table` says, by the path that each sits behind."""
    kept = {}
    for index, site in enumerate(model.sites):
        if table.stage[0, index] == Stage.FOSSILIZED:
            seed = copy.deepcopy(model.slots[index].get_submodule("seed"))
            blueprint = find_blueprint(site.shape.family, int(table.blueprint[0, index]))
            kept[site.path] = KeptSeed(site, seed, float(table.alpha[0, index]), site.source_of(blueprint.reads))
    return kept


def insert_kept(network: nn.Module, kept: Mapping[str, KeptSeed], *, nest: bool = True) -> None:
    """Put seeds into a copy of their host; those that refine before the others."""
    bypasses = []
    for path, seed in kept.items():
        module = seed.module if seed.alpha == 1 else Scaled(seed.module, seed.alpha)
        if seed.source is None:
            insert_seed(network, path, module)
        else:
            bypasses.append(Bypass(seed.source, path, module))
    insert_bypasses(network, bypasses, nest=nest)


def bare_copy(host: nn.Module) -> nn.Module:
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


def _expected(model: GraftedModel, table: SlotTable, example: Example) -> list[Tensor]:
    """What the host returns with the seeds that were kept, and without the others."""
    unfinished = model.table.occupied[0] & (table.stage[0] != Stage.FOSSILIZED)
    silent = dict.fromkeys(unfinished.nonzero().flatten().tolist(), 0.0)
    with model.override_alphas(silent):
        return _outputs(model.host, example)


def _outputs(network: nn.Module, example: Example) -> list[Tensor]:
    """All numbers that a network returns on the example; what is random is the same each time."""
    leaves = tree_leaves(evaluate_on(network, example))
    return [leaf.double() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _difference(expected: list[Tensor], got: list[Tensor]) -> float:
    """The largest difference of two outputs, relative to the largest number in the first."""
    if len(expected) != len(got) or any(a.shape != b.shape for a, b in zip(expected, got, strict=True)):
        return float("inf")
    size = max([1.0, *(float(a.abs().nan_to_num(0.0, 0.0).max()) for a in expected if a.numel())])
    return max((_gap(a, b) for a, b in zip(expected, got, strict=True) if a.numel()), default=0.0) / size


def _gap(expected: Tensor, got: Tensor) -> float:
    """The largest difference; infinities and NaN are equal to themselves, and infinitely far from all else."""
    same = (expected == got) | (expected.isnan() & got.isnan())
    return float(torch.where(same, 0.0, (expected - got).abs()).nan_to_num(torch.inf).max())
