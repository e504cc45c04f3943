"""The programs of native hosts: what training, validation and merit run, for every set of seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any

import torch
from numpy.typing import NDArray

from esper.kasmina import Blueprint, Catalogue, Host, Site, find_blueprint
from esper.kasmina.merit import WouldBeSeeds, kinds_with_merit
from esper.leyline import InputError
from esper.tolaria.executors.forward import cut_chain
from esper.tolaria.executors.native_program import Builder, Program, Recording, Value, record

Planted = tuple[int, ...]
"""By slot: the blueprint id of its seed, or 0."""

_MOST_ROWS = 1 << 23
"""Of the memory of a pass with a seed in every slot: 4 GB in single precision for 64 samples and their gradients."""


_KEPT = 1024
"""Programs that are kept; each takes a few kilobytes and less than a millisecond to make."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A copy of what lies behind a slot: with the slot's seed at an alpha of its own, or without it."""

    slot: int
    with_seed: bool = True


@dataclass(frozen=True, slots=True)
class MeritProgram:
    """A host's own pass, then seeds that are not planted."""

    whole: Program
    cut: int
    """The line with which the seeds begin."""
    learning: dict[tuple[int, int], list[slice]]
    """By slot and kind: the parameters that would learn first, behind those of the host and its seeds."""
    behind: list[tuple[int, int]]
    """By slot: the first row of the host's value behind it, and the end of its rows."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the host, or a kind of seed in a slot."""

    recording: Recording
    size: int
    """How many parameters it has."""
    place: int | None = None
    """Of a seed: where in the chain it reads; None if that is at its slot."""


@dataclass(frozen=True, slots=True)
class _Trunk:
    """Where the values of a host's own pass are."""

    planted: Planted
    blended: tuple[bool, ...]
    offsets: dict[int, int]
    """By slot: where the parameters of its seed begin."""
    places: list[Value] = field(default_factory=list)
    """In front of every part."""
    before: dict[int, Value] = field(default_factory=dict)
    """By slot: what its seed is added to."""
    deltas: dict[int, Value] = field(default_factory=dict)
    """By slot: what its seed makes."""
    behind: dict[int, Value] = field(default_factory=dict)


class HostPrograms:
    """Programs for one shape of host; each is made when its set of seeds first appears."""

    def __init__(
        self, host: Host, sites: Sequence[Site], catalogue: Catalogue, sample: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        self._sites, self._sample, self._dtype = sites, sample, dtype
        self._chain = cut_chain(host, sites)
        self._place_of = {slot: place for place, slot in self._chain.slots.items()}
        self._parts = self._record_parts(host)
        starts = list(accumulate([0, *(part.size for part in self._parts)]))
        self._starts, self.host_params = starts[:-1], starts[-1]
        fitting = catalogue.fits.nonzero().tolist()
        self._kinds = {(slot, index + 1): self._record_kind(slot, index + 1) for slot, index in fitting}
        self._check_room()
        self._would_be = {
            (slot, kind.id): kind
            for slot, site in enumerate(sites)
            for kind, _ in kinds_with_merit(site, catalogue.fits[slot])
        }
        self._seeds = WouldBeSeeds()
        self.passes = lru_cache(_KEPT)(self._make_passes)
        self.merit = lru_cache(_KEPT)(self._make_merit)
        self.would_be_weights = cache(self._flatten_would_be)

    def _check_room(self) -> None:
        """Refuse a host now that might need more memory later, when all slots are full and all seeds are measured."""
        slots = range(len(self._sites))
        seeds = [
            max([0, *(kind.recording.rows for key, kind in self._kinds.items() if key[0] == slot)]) for slot in slots
        ]
        rows = sum(part.recording.rows for part in self._parts) + sum(seeds)
        if (1 + 2 * len(slots)) * rows > _MOST_ROWS:
            raise InputError("the executor 'native' has no room for hosts as large as this; use 'stacked' or 'loop'")

    def _record_parts(self, host: Host) -> list[_Part]:
        shape, parts = self._sample, []
        for name in self._chain.parts:
            module = host.get_submodule(name)
            parts.append(_Part(record(module, shape), _size(module)))
            shape = parts[-1].recording.result.shape
        return parts

    def _record_kind(self, slot: int, blueprint: int) -> _Part:
        site = self._sites[slot]
        kind = find_blueprint(site.shape.family, blueprint)
        source = site.source_of(kind.reads)
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
            module = kind.build(site.shape).to(self._dtype)
        given = site.shape if source is None else source.shape
        place = None if source is None else self._chain.sources[source]
        return _Part(record(module, given.tensor_shape(1)[1:]), _size(module), place)

    def units(self, planted: Planted) -> list[int]:
        """Where the parameters of the host and of each of its seeds begin, and the end of the last."""
        sizes = [self._kinds[slot, blueprint].size for slot, blueprint in enumerate(planted) if blueprint]
        return list(accumulate([0, self.host_params, *sizes]))

    def _make_passes(
        self, planted: Planted, blended: tuple[bool, ...], variants: tuple[Variant, ...], *, train: bool
    ) -> Program:
        """The host as it is, and each of the variants; their losses are results 0, 1, 2 …

        Alphas are those of all slots, then one for each variant. In training, seeds of variants learn from these alone.
        """
        builder = Builder(self._sample, self._dtype)
        trunk = self._run_trunk(builder, planted, blended, {v.slot for v in variants if v.with_seed}, train=train)
        for number, variant in enumerate(variants):
            self._run_variant(builder, trunk, variant, number)
        return builder.build()

    def _make_merit(self, planted: Planted, blended: tuple[bool, ...]) -> MeritProgram:
        """The host as it is, and every kind that connects in every free slot; alphas are those of all slots."""
        builder = Builder(self._sample, self._dtype)
        trunk = self._run_trunk(builder, planted, blended, set(), train=True)
        cut, first, learning = sum(map(len, builder.tables)), self.units(planted)[-1], {}
        for (slot, blueprint), kind in self._would_be.items():
            part = self._kinds[slot, blueprint]
            if not planted[slot]:
                src = trunk.behind[slot] if part.place is None else trunk.places[part.place]
                delta = builder.add(part.recording, src, first, learns=True, sends=False)
                builder.take(delta, trunk.behind[slot])
                learning[slot, blueprint] = self._learning(slot, kind, first)
            first += part.size
        ends = [trunk.behind[slot] for slot in range(len(self._sites))]
        behind = [(value.row, value.row + value.rows) for value in ends]
        return MeritProgram(builder.build(), cut, learning, behind)

    def _learning(self, slot: int, kind: Blueprint, first: int) -> list[slice]:
        seed = self._seeds.find(self._sites[slot], kind, 0, (torch.device("cpu"), self._dtype))
        sizes = [parameter.numel() for parameter in seed.module.parameters()]
        starts = accumulate([first, *sizes])
        return [slice(at, at + size) for at, size, learns in zip(starts, sizes, seed.learns, strict=False) if learns]

    def _flatten_would_be(self, variant: int) -> NDArray[Any]:
        """The parameters of all seeds that merit is measured of, as this variant has them."""
        place = torch.device("cpu"), self._dtype
        kinds = self._would_be.items()
        found = [self._seeds.find(self._sites[slot], kind, variant, place) for (slot, _), kind in kinds]
        flat = [parameter.detach().flatten() for seed in found for parameter in seed.module.parameters()]
        weights: NDArray[Any] = torch.cat([torch.empty(0, dtype=self._dtype), *flat]).numpy()
        return weights

    def _run_trunk(
        self, builder: Builder, planted: Planted, blended: tuple[bool, ...], apart: set[int], *, train: bool
    ) -> _Trunk:
        """The host with its blended seeds; those of slots `apart` are computed too, from values they do not teach."""
        occupied = [slot for slot, blueprint in enumerate(planted) if blueprint]
        trunk = _Trunk(planted, blended, dict(zip(occupied, self.units(planted)[1:], strict=False)))
        h = builder.input
        for place, part in enumerate(self._parts):
            trunk.places.append(h)
            h = builder.add(part.recording, h, self._starts[place], learns=train, sends=builder.learns(h))
            slot = self._chain.slots.get(place)
            if slot is None:
                continue
            trunk.before[slot] = h
            if blended[slot] or slot in apart:
                kind = self._kinds[slot, planted[slot]]
                src = h if kind.place is None else trunk.places[kind.place]
                sends = blended[slot] and builder.learns(src)
                trunk.deltas[slot] = builder.add(kind.recording, src, trunk.offsets[slot], learns=train, sends=sends)
            if blended[slot]:
                h = builder.join(h, trunk.deltas[slot], slot, sends=builder.learns(h))
            trunk.behind[slot] = h
        builder.end(h, 0)
        return trunk

    def _run_variant(self, builder: Builder, trunk: _Trunk, variant: Variant, number: int) -> None:
        """What is behind a slot once more, from another alpha there on; nothing in it learns but that seed."""
        h = trunk.before[variant.slot]
        if variant.with_seed:
            h = builder.join(h, trunk.deltas[variant.slot], len(self._sites) + number, sends=False)
        born = self._place_of[variant.slot] + 1
        places = trunk.places[:born]
        for place in range(born, len(self._parts)):
            places.append(h)
            h = builder.add(self._parts[place].recording, h, self._starts[place], learns=False, sends=True)
            slot = self._chain.slots.get(place)
            if slot is not None and trunk.blended[slot]:
                kind = self._kinds[slot, trunk.planted[slot]]
                # What it reads from in front of the branch is the host's own, and is not taught.
                src = h if kind.place is None else places[kind.place]
                sends = kind.place is None or kind.place >= born
                delta = builder.add(kind.recording, src, trunk.offsets[slot], learns=False, sends=sends)
                h = builder.join(h, delta, slot, sends=True)
        builder.end(h, number + 1)


def _size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
