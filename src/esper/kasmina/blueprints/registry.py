"""The registry of blueprints: one decorator, five places per family, prices measured and not declared."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import torch
from torch import nn

from esper.kasmina.flops import count_flops
from esper.kasmina.sites import Family, SiteShape
from esper.leyline import NUM_BLUEPRINTS, InputError, unknown_name


@dataclass(frozen=True, slots=True)
class Cost:
    """What a seed adds to its host."""

    params: int
    flops: int
    """Of one forward pass over one sample."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A kind of seed. Its modules return the residual `delta`; the slot adds `alpha * delta` to the host."""

    family: Family
    id: int
    """1 to 5: the code in tables and observations. The index in the blueprint head is one less."""
    name: str
    summary: str
    factory: Callable[[SiteShape], nn.Module]
    fits: Callable[[SiteShape], bool]
    affine: bool = False
    """Whether its seeds are affine maps, which add nothing behind a trained linear layer and are not planted there."""

    def build(self, site: SiteShape, silent: bool = True) -> nn.Module:
        """A fresh module for `site`, initialised from torch's global random state.

        If `silent` its output is 0 at first. A seed that joins at alpha 1 has to be; one that starts at alpha 0 learns
        faster awake. Kinds without a method `silence` are left as they are: always silent.
        """
        if not self.fits(site):
            raise InputError(f"blueprint {self.name!r} does not fit {site}")
        module = self.factory(site)
        silence = getattr(module, "silence", None)
        if silent and silence is not None:
            silence()
        return module

    def cost(self, site: SiteShape) -> Cost:
        """Parameters and FLOPs of a seed at `site`, measured on the module itself without allocating it."""
        return _measure_cost(self, site)


@lru_cache(maxsize=4096)
def _measure_cost(blueprint: Blueprint, site: SiteShape) -> Cost:
    with torch.device("meta"):
        module = blueprint.build(site)
        sample = torch.empty(site.tensor_shape(1))
    return Cost(sum(p.numel() for p in module.parameters()), count_flops(module, sample))


FactoryT = TypeVar("FactoryT", bound=Callable[[SiteShape], nn.Module])

_REGISTRY: dict[tuple[Family, int], Blueprint] = {}


def blueprint(
    family: Family,
    id: int,  # noqa: A002  # the name people read in tables
    name: str,
    summary: str,
    *,
    fits: Callable[[SiteShape], bool] = lambda _: True,
    affine: bool = False,
    replace: bool = False,
) -> Callable[[FactoryT], FactoryT]:
    """Register the decorated module class, whose constructor takes a `SiteShape`, as a blueprint.

    A family has exactly five places because the observation has; `replace=True` takes over an occupied one.
    `affine` kinds are not planted behind a trained linear layer, to which they would add nothing.
    The module returns a residual that starts at 0, by itself or once its method `silence` was called, and draws no
    random numbers in its forward pass: an isolated seed may not disturb its host's.
    """

    def register(module_class: FactoryT) -> FactoryT:
        if not 1 <= id <= NUM_BLUEPRINTS:
            raise InputError(f"blueprint id {id} is outside 1..{NUM_BLUEPRINTS}")
        present = _REGISTRY.get((family, id))
        if present is not None and not replace:
            raise InputError(f"place {id} of {family} holds {present.name!r}; pass replace=True to take it over")
        if any(other.name == name and other.id != id for other in blueprints_of(family)):
            raise InputError(f"{family} has a blueprint named {name!r} already")
        _REGISTRY[family, id] = Blueprint(family, id, name, summary, module_class, fits, affine)
        return module_class

    return register


def blueprints_of(family: Family) -> list[Blueprint]:
    """The blueprints of `family` in the order of their ids."""
    return [entry for _, entry in sorted(_REGISTRY.items()) if entry.family is family]


def find_blueprint(family: Family, name_or_id: str | int) -> Blueprint:
    """The blueprint of `family` with this name or id (1 to 5)."""
    for entry in blueprints_of(family):
        if name_or_id in (entry.name, entry.id):
            return entry
    raise unknown_name(f"{family} blueprint", name_or_id, (entry.name for entry in blueprints_of(family)))
