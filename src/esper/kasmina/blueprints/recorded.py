"""The catalogue that a file was made with: kinds of seeds by name, so that ids never mean something else unnoticed."""

from collections.abc import Iterable, Mapping
from itertools import zip_longest

from esper.kasmina.blueprints.registry import blueprints_of
from esper.kasmina.sites import Family
from esper.leyline import DamagedFileError, OtherCatalogueError

_MOST_SHOWN = 3
"""Differences that a message lists."""


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
