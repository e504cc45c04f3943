"""The distilled rule: a few plantings in a fixed order, each where the rent allows it, fitted to what search found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esper.kasmina import Site, find_blueprint
from esper.kasmina.sites import Family
from esper.leyline import POINTS, Blend, InputError, Op
from esper.tamiyo.simple import wait
from esper.tolaria import Situation


@dataclass(frozen=True, slots=True)
class RulePlanting:
    """One line of the rule."""

    kind: str
    """Name of a blueprint; a family that lacks it skips the line."""
    depth: float
    """Where: 0 for the first slot, 1 for the last; the nearest slot that is free for it is taken."""
    max_rent: float
    """Points of rent above which it is left out."""


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """The rule's numbers, fitted on the training tasks (docs/learning-log.md)."""

    maps: tuple[RulePlanting, ...] = (
        RulePlanting("far_wide", 1 / 2, 4.0),
        RulePlanting("far_wide", 1 / 3, 2.0),
        RulePlanting("far_narrow", 1 / 6, 2.0),
    )
    """What is planted in networks of feature maps, in order."""
    features: tuple[RulePlanting, ...] = (
        RulePlanting("far_wide", 1.0, 2.0),
        RulePlanting("far_wide", 5 / 6, 2.0),
        RulePlanting("norm", 1 / 6, 0.3),
    )
    """The same for networks of features."""
    first_epoch: int = 0
    """Epochs that every host first trains alone."""
    features_first_epoch: int = 2
    """The same for networks of features."""
    time_needed: float = 0.5
    """Nothing is planted with a smaller share of the episode left."""

    def __post_init__(self) -> None:
        for line in (*self.maps, *self.features):
            if not 0 <= line.depth <= 1:
                raise InputError(f"depth must be from 0, the first slot, to 1, the last; got {line.depth}")

    def lines_for(self, sites: Sequence[Site]) -> tuple[tuple[RulePlanting, ...], int]:
        """What is planted in a network with these sites, and from which epoch on."""
        if any(site.shape.family is not Family.FEATURES for site in sites):
            return self.maps, self.first_epoch
        # As the heuristic: in sequences of features nothing that was tried has paid.
        in_sequences = any(site.shape.extent for site in sites)
        return () if in_sequences else self.features, self.features_first_epoch


class Rule:
    """Plants line by line, one a step, at once; keeps every seed as soon as it may."""

    name = "rule"

    def __init__(self, settings: RuleSettings | None = None) -> None:
        self.settings = settings or RuleSettings()
        self._done: list[int] = []
        """Lines that are behind each host, planted or left out."""

    def reset(self, num_hosts: int, seed: int) -> None:  # noqa: ARG002  # nothing here is random
        self._done = [0] * num_hosts

    def state_dict(self) -> dict[str, Any]:
        return {"done": list(self._done)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._done = list(state["done"])

    def decide(self, situation: Situation) -> Tensor:
        return torch.stack([self._decide_for(situation, host) for host in range(len(self._done))])

    def _decide_for(self, situation: Situation, host: int) -> Tensor:
        lines, first = self.settings.lines_for(situation.sites)
        in_time = int(situation.steps_left[host]) >= self.settings.time_needed * situation.episode_length
        if in_time and int(situation.signals.epoch[host]) >= first:
            while self._done[host] < len(lines):
                line = lines[self._done[host]]
                self._done[host] += 1
                place = place_for(line, situation, host)
                if place is not None:
                    return torch.tensor([*place, Blend.INSTANT, Op.GERMINATE])
        keepable = situation.masks.slot[host, Op.FOSSILIZE].nonzero().flatten().tolist()
        return torch.tensor([keepable[0], 0, 0, Op.FOSSILIZE]) if keepable else wait(1)[0]


def place_for(line: RulePlanting, situation: Situation, host: int) -> tuple[int, int] | None:
    """Slot and kind for a line: the free slot nearest to its depth in which it is legal and not too dear."""
    masks, offers = situation.masks, situation.catalogue
    owed = POINTS * situation.rent(offers.params[None].float(), offers.flops[None].float())[host]
    slots = range(len(situation.sites))
    for slot in sorted(slots, key=lambda slot: (abs(slot - line.depth * (len(slots) - 1)), slot)):
        kind = _kind_index(situation.sites[slot], line.kind)
        if kind is None or not masks.slot[host, Op.GERMINATE, slot] or not masks.blend[host, Blend.INSTANT]:
            continue
        if masks.blueprint[host, slot, kind] and float(owed[slot, kind]) <= line.max_rent:
            return slot, kind
    return None


def _kind_index(site: Site, name: str) -> int | None:
    """The index of a kind in the blueprint head; None where its family has none of that name."""
    try:
        return find_blueprint(site.shape.family, name).id - 1
    except InputError:
        return None
