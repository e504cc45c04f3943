"""The registry of blueprints: one decorator, ids without gaps in each family, prices measured and not declared.

Files store the names of the catalogue that they were made with, so that ids never mean something else unnoticed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import Literal, TypeVar

import torch
from torch import nn

from esper.kasmina.flops import count_flops
from esper.kasmina.sites import Family, Reach, SiteShape
from esper.leyline import DamagedFileError, InputError, OtherCatalogueError, unknown_name

_MOST_SHOWN = 3
"""Differences between catalogues that a message lists."""


@dataclass(frozen=True, slots=True)
class Mixing:
    """What a seed brings together: what a learned controller knows a kind by, beside its reach and its price."""

    channels: bool = True
    """Whether its output at one channel, or feature, depends on the others."""
    positions: Literal["none", "neighbours", "all"] | None = None
    """On which other positions its output at one of them depends; None: as layers of the family do, on neighbours in
    feature maps and on none in features."""


MIXES_NOTHING = Mixing(channels=False, positions="none")
_USUAL = Mixing()


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
    """From 1 on: the code in tables and observations. The index in the blueprint head is one less."""
    name: str
    summary: str
    factory: Callable[[SiteShape], nn.Module]
    fits: Callable[[SiteShape], bool]
    affine: bool = False
    """Whether its seeds are affine maps, which add nothing behind a trained linear layer and are not planted there."""
    reads: Reach | None = None
    """The source that its seeds connect with the site; None for kinds that refine the tensor at the site itself."""
    mixes: Mixing = _USUAL

    @property
    def mixed_positions(self) -> Literal["none", "neighbours", "all"]:
        """On which other positions the output of its seeds at one of them depends."""
        return self.mixes.positions or ("none" if self.family is Family.FEATURES else "neighbours")

    def input_shape(self, site: SiteShape) -> SiteShape:
        return (site.source(self.reads) if self.reads else None) or site

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

    def outline(self, site: SiteShape) -> nn.Module:
        """A module for `site` on the `meta` device, which tells names and shapes and takes no memory."""
        with torch.device("meta"):
            return self.build(site)

    def cost(self, site: SiteShape) -> Cost:
        """Parameters and FLOPs of a seed at `site`, measured on its outline."""
        return _measure_cost(self, site)


@lru_cache(maxsize=4096)
def _measure_cost(blueprint: Blueprint, site: SiteShape) -> Cost:
    module = blueprint.outline(site)
    sample = torch.empty(blueprint.input_shape(site).tensor_shape(1), device="meta")
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
    reads: Reach | None = None,
    mixes: Mixing = _USUAL,
    replace: bool = False,
) -> Callable[[FactoryT], FactoryT]:
    """Register the decorated module class, whose constructor takes a `SiteShape`, as a blueprint.

    Ids of a family have no gaps: a new kind takes the next one, or with `replace=True` that of another kind. The
    policy's heads and the observation have as many places as the largest family, so register before anything is made.
    `affine` kinds are not planted behind a trained linear layer, to which they would add nothing. A kind that `reads`
    a source is called with that tensor instead of the one at its site, and fits only where there is one.
    The module returns a residual that starts at 0, by itself or once its method `silence` was called, and draws no
    random numbers in its forward pass: an isolated seed may not disturb its host's.
    """

    def register(module_class: FactoryT) -> FactoryT:
        following = len(blueprints_of(family)) + 1
        if not 1 <= id <= following:
            raise InputError(f"blueprint id {id} would leave a gap in {family}; its next id is {following}")
        present = _REGISTRY.get((family, id))
        if present is not None and not replace:
            raise InputError(f"place {id} of {family} holds {present.name!r}; pass replace=True to take it over")
        if any(other.name == name and other.id != id for other in blueprints_of(family)):
            raise InputError(f"{family} has a blueprint named {name!r} already")
        _REGISTRY[family, id] = Blueprint(family, id, name, summary, module_class, fits_here, affine, reads, mixes)
        return module_class

    def fits_here(site: SiteShape) -> bool:
        return (reads is None or site.source(reads) is not None) and fits(site)

    return register


def blueprints_of(family: Family) -> list[Blueprint]:
    """The blueprints of `family` in the order of their ids."""
    return [entry for _, entry in sorted(_REGISTRY.items()) if entry.family is family]


def num_blueprints() -> int:
    """B, the size of the largest catalogue of any family; what a family lacks of it is never legal there."""
    return max(place for _, place in _REGISTRY)


def find_blueprint(family: Family, name_or_id: str | int) -> Blueprint:
    for entry in blueprints_of(family):
        if name_or_id in (entry.name, entry.id):
            return entry
    raise unknown_name(f"{family} blueprint", name_or_id, (entry.name for entry in blueprints_of(family)))


def catalogue_names(families: Iterable[Family] = Family) -> dict[str, list[str]]:
    """By family, the names of its kinds in the order of their ids, in built-in types."""
    return {family.value: [entry.name for entry in blueprints_of(family)] for family in sorted(set(families))}


def check_catalogue(stored: object, present: Mapping[str, list[str]], whose: str, otherwise: str) -> None:
    """Refuse what was made with another catalogue than `present`; both as `catalogue_names` gives them.

    `whose` catalogue it is begins the sentence, and what helps `otherwise` ends it.
    """
    if stored is None:
        raise OtherCatalogueError(
            f"{whose} was written by an older version and does not say with which blueprints it was made; {otherwise}"
        )
    if not isinstance(stored, Mapping) or not all(_are_names(names) for names in stored.values()):
        raise DamagedFileError(
            f"{whose} holds a catalogue that does not list names of blueprints by family; {otherwise}"
        )
    families = {**present, **stored}
    differences = [
        _difference(str(family), place, there, here)
        for family in families
        for place, (there, here) in enumerate(zip_longest(stored.get(family, ()), present.get(family, ())), start=1)
        if there != here
    ]
    if differences:
        more = f" and {len(differences) - _MOST_SHOWN} more" if len(differences) > _MOST_SHOWN else ""
        raise OtherCatalogueError(
            f"{whose} was made with another catalogue of blueprints ({', '.join(differences[:_MOST_SHOWN])}{more}); "
            f"register the same names under the same ids before it is loaded, or {otherwise}"
        )


def _are_names(names: object) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _difference(family: str, place: int, there: str | None, here: str | None) -> str:
    was, now = ("nothing" if name is None else repr(name) for name in (there, here))
    return f"{family} {place} was {was}, here it is {now}"
