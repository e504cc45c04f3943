"""Seeds in the state dict of their host, so that the ordinary ways to save a model carry what was grown.

Until something is planted the state of a growing model has the keys of the plain one. Then each seed adds, with its
slot, its kind and where it stands in its life:

    esper_seeds.<note to whoever loads this into the plain class>
    esper_seeds.layers/0.mlp.slot.stage, …alpha, …           its row of the slot table, as far as it is known; dots in
                                                             the path become slashes
    esper_seeds.layers/0.mlp.weights.hidden.weight, …        its own state

Everything is a tensor, so that formats which take nothing else take it. The plain class refuses the keys; torch's
message lists them, the note first.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from esper.kasmina.blueprints.registry import Blueprint, find_blueprint
from esper.kasmina.growth import Growth, remove_pass_hooks
from esper.kasmina.sites import Site
from esper.kasmina.table import SlotTable
from esper.kasmina.torch_private import remove_hooks, state_hooks
from esper.leyline import InputError

_PREFIX = "esper_seeds."
_NOTE = (
    f"{_PREFIX}this model was saved while it grows: for the plain class, save grower.export() instead; "
    "to go on growing, use Grower.save and Grower.load, or load_state_dict of grower.model"
)
_FORMAT = 1
"""The value of the note: how the keys are to be read."""


@dataclass(frozen=True, slots=True)
class _SavedSeed:
    """One seed as it stands in a state dict."""

    blueprint: Blueprint
    row: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)


def carry_seeds(host: nn.Module, growth: Growth) -> None:
    """Let the state dict of `host`, alone or as a part of another module, hold what has grown on it."""
    host.register_state_dict_post_hook(_Save(growth))
    host.register_load_state_dict_pre_hook(_Load(growth))


def growth_on(host: nn.Module) -> Growth | None:
    """What grows on `host`; None if it carries no slots."""
    return next((hook.growth for hook in state_hooks(host) if isinstance(hook, _Save)), None)


def remove_slots(host: nn.Module) -> None:
    """Take slots and everything that knows of them off `host`; seeds go with them."""
    remove_pass_hooks(host)
    remove_hooks(host, (_Save, _Load))


def leave_out_seeds(module: nn.Module) -> RemovableHandle:
    """Let `module`, which carries no slots yet, load the rest of a grown state until the handle is removed."""
    handle: RemovableHandle = module.register_load_state_dict_pre_hook(_leave_out)
    return handle


def _leave_out(_module: nn.Module, state: dict[str, Any], _prefix: str, *_: Any) -> None:
    for key in [key for key in state if key.startswith(_PREFIX) or f".{_PREFIX}" in key]:
        del state[key]


class _Save:
    """A hook that is copied along with its host, as a closure would not be."""

    def __init__(self, growth: Growth) -> None:
        self.growth = growth

    def __call__(self, host: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:  # noqa: ARG002
        table = self.growth.table
        planted = table.occupied[0].nonzero().flatten().tolist()
        if planted:
            state[prefix + _NOTE] = torch.tensor(_FORMAT)
        for index in planted:
            site = self.growth.sites[index]
            kind = find_blueprint(site.shape.family, int(table.blueprint[0, index])).name
            name = f"{prefix}{_PREFIX}{_encoded(site.path)}.{kind}."
            row = {key: column[0, index].clone() for key, column in table.columns().items()}
            state.update({f"{name}slot.{key}": value for key, value in row.items() if not value.isnan()})
            seed = self.growth.slots[index].get_submodule("seed")
            seed.state_dict(destination=state, prefix=f"{name}weights.")


class _Load:
    """Plants what a state dict holds, before torch loads the rest; what does not fit is refused first."""

    def __init__(self, growth: Growth) -> None:
        self._growth = growth

    def __call__(self, host: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        start = prefix + _PREFIX
        saved = {key.removeprefix(start): state.pop(key) for key in list(state) if key.startswith(start)}
        growth = self._growth
        if not saved and not growth.table.occupied.any():
            return
        if not saved and any(prefix + key not in state for key in host.state_dict() if not key.startswith(_PREFIX)):
            warnings.warn(
                "a part of a state was loaded, without seeds: those of the model stay; a whole state without seeds "
                "would take them away, because it is that of a model that had none",
                stacklevel=4,
            )
            return
        saved.pop(_NOTE.removeprefix(_PREFIX), None)
        seeds = _parsed(saved, growth.sites)
        table = _table(seeds, growth.sites)
        weights = {index: _checked_weights(growth.sites[index], seed) for index, seed in seeds.items()}
        growth.follow(host, table)
        for index, own in weights.items():
            growth.slots[index].get_submodule("seed").load_state_dict(own)


def _encoded(path: str) -> str:
    return path.replace("/", "//").replace(".", "/")


def _parsed(saved: Mapping[str, Any], sites: tuple[Site, ...]) -> dict[int, _SavedSeed]:
    """The seeds by the slot that each belongs to; `saved` has keys such as `layers/0.mlp.slot.alpha`."""
    places = {_encoded(site.path): index for index, site in enumerate(sites)}
    seeds: dict[int, _SavedSeed] = {}
    for key, value in saved.items():
        place, _, rest = key.partition(".")
        kind, _, rest = rest.partition(".")
        part, _, name = rest.partition(".")
        if place not in places:
            here = ", ".join(site.path for site in sites)
            there = place.replace("/", ".")
            raise InputError(
                f"this state holds a seed behind {there!r}; here are slots behind {here}: graft them alike"
            )
        index = places[place]
        seed = seeds.setdefault(index, _SavedSeed(find_blueprint(sites[index].shape.family, kind)))
        if part not in ("slot", "weights") or seed.blueprint.name != kind:
            raise InputError(f"this state holds {_PREFIX}{key}, which is not how a seed is saved; it was altered")
        (seed.row if part == "slot" else seed.weights)[name] = value
    return seeds


def _table(seeds: Mapping[int, _SavedSeed], sites: tuple[Site, ...]) -> SlotTable:
    table = SlotTable.empty(1, len(sites))
    for index, seed in seeds.items():
        scalars = {key: value for key, value in seed.row.items() if isinstance(value, Tensor) and not value.ndim}
        unknown = {key: column for key, column in SlotTable.empty(1, 1).columns().items() if column.isnan()}
        row = SlotTable.from_columns(unknown | {key: value.cpu().view(1, 1) for key, value in scalars.items()}, 1)
        if int(row.blueprint) != seed.blueprint.id:
            raise InputError(f"the seed behind {sites[index].path!r} in this state has two kinds; it was altered")
        for key, column in row.columns().items():
            getattr(table, key)[0, index] = column[0, 0]
    return table


def _checked_weights(site: Site, seed: _SavedSeed) -> dict[str, Tensor]:
    """The weights of a seed, if a seed of its kind has just those."""
    expected = {name: tensor.shape for name, tensor in seed.blueprint.outline(site.shape).state_dict().items()}
    dense = {name: t for name, t in seed.weights.items() if isinstance(t, Tensor) and t.layout == torch.strided}
    given = {name: tensor.shape for name, tensor in dense.items()}
    if different := differing(given, expected):
        raise InputError(
            f"the seed behind {site.path!r} in this state is no {seed.blueprint.name} of width {site.shape.width}: "
            f"{', '.join(different)} differ"
        )
    return seed.weights


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The names for which two mappings hold different values, or which only one of them has."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
