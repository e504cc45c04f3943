"""A host of the zoo as a chain of parts, cut so that every slot and every source lies between two of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from esper.kasmina import Host, Site, Source


@dataclass(frozen=True, slots=True)
class Chain:
    """The parts in order. Place `p` is in front of part `p`; what the last one returns has a place too."""

    parts: tuple[str, ...]
    slots: dict[int, int]
    """By part: the slot behind it."""
    sources: dict[Source, int]
    """The place of each tensor that seeds can read."""


def cut_chain(host: Host, sites: Sequence[Site]) -> Chain:
    """The chain of `host` for slots at `sites`: parts that are sequences are taken apart where there is need."""
    sources = {source for site in sites for _, source in site.sources}
    parts = list(host.parts)
    for path in (*(site.path for site in sites), *(source.path for source in sources)):
        # From the outside in: the children of a sequence may be sequences again.
        while path and (whole := next((part for part in parts if path.startswith(f"{part}.")), None)):
            index = parts.index(whole)
            parts[index : index + 1] = [f"{whole}.{name}" for name, _ in host.get_submodule(whole).named_children()]
    # A slot is behind the last part of its submodule.
    slots = {_last(parts, site.path): slot for slot, site in enumerate(sites)}
    return Chain(tuple(parts), slots, {source: _place(parts, source) for source in sources})


def _place(parts: list[str], source: Source) -> int:
    if source.port == "output":
        return _last(parts, source.path) + 1
    return next(
        index for index, part in enumerate(parts) if not source.path or f"{part}.".startswith(f"{source.path}.")
    )


def _last(parts: list[str], path: str) -> int:
    """The last part of the submodule `path`, which may have been taken apart."""
    return max(index for index, part in enumerate(parts) if f"{part}.".startswith(f"{path}."))
