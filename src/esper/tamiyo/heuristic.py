"""The heuristic: plant early what was found to pay, where it pays, and keep what earns its rent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esper.kasmina import Site
from esper.kasmina.sites import Family
from esper.leyline import Blend, Op, Stage, rent
from esper.tamiyo.simple import wait
from esper.tolaria import Situation

_UNFINISHED = torch.tensor([Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING])


@dataclass(frozen=True, slots=True)
class HeuristicSettings:
    """The rule's numbers, tuned on the training tasks (docs/growth.md)."""

    first_epoch: int = 0
    """Epochs that every host first trains alone."""
    features_first_epoch: int = 2
    """The same for feature networks: a bypass to the output that is there from the start keeps the layers in between
    from learning."""
    in_sequences: bool = False
    """Whether anything is planted in networks that pass on sequences of features, as transformers do: nothing that was
    tried there paid its rent."""
    time_needed: float = 0.5
    """Nothing new is planted with a smaller share of the episode left."""
    order: tuple[int, ...] = (6, 5, 8, 7, 3, 4, 1, 2, 0)
    """In which order kinds (head indices) are tried: first bypasses from far, the wide one before the narrow one."""
    max_rent: float = 0.04
    """Highest rent of the first seed of a host."""
    more_rent: float = 0.01
    """Highest total rent of several seeds: a second one pays only where it is cheap."""
    max_seeds: int = 2
    """How many seeds a host may have."""
    patience: int = 8
    """Epochs that a seed is given to earn its rent before it is culled, and the next kind tried."""
    margin: float = 1.0
    """A seed is kept once its contribution exceeds this many times its rent."""


class Heuristic:
    """One seed after the other: plant what comes first and is affordable, then keep or cull it by what it brings."""

    name = "heuristic"

    def __init__(self, settings: HeuristicSettings | None = None) -> None:
        self.settings = settings or HeuristicSettings()
        self._tried: list[list[int]] = []
        """Kinds that were tried on each host."""

    def reset(self, num_hosts: int, seed: int) -> None:  # noqa: ARG002  # nothing here is random
        self._tried = [[] for _ in range(num_hosts)]

    def state_dict(self) -> dict[str, Any]:
        return {"memories": [{"tried": list(tried)} for tried in self._tried]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._tried = [list(memory["tried"]) for memory in state["memories"]]

    def plants_in(self, sites: Sequence[Site]) -> bool:
        """Whether anything is ever planted in a network with these sites."""
        in_sequences = _is_of_features(sites) and any(site.shape.extent for site in sites)
        return self.settings.in_sequences or not in_sequences

    def decide(self, situation: Situation) -> Tensor:
        actions = wait(len(self._tried))
        for host, tried in enumerate(self._tried):
            on_trial = torch.isin(situation.table.stage[host], _UNFINISHED).nonzero().flatten().tolist()
            if on_trial:
                actions[host] = self._judge(situation, host, on_trial[0])
            elif self._wants_growth(situation, host):
                actions[host] = self._germinate(situation, host, tried)
        return actions

    def _judge(self, situation: Situation, host: int, slot: int) -> Tensor:
        """Keep the seed in `slot` if it pays, cull it once it has had its time, else wait."""
        table, masks = situation.table, situation.masks.slot[host]
        if table.stage[host, slot] != Stage.HOLDING:
            return wait(1)[0]
        earns = float(table.contribution[host, slot]) > self.settings.margin * _owed(situation, host, slot)
        overdue = int(table.epochs_in_stage[host, slot]) >= self.settings.patience
        if earns and masks[Op.FOSSILIZE, slot]:
            return torch.tensor([slot, 0, 0, Op.FOSSILIZE])
        if overdue and masks[Op.CULL, slot]:
            return torch.tensor([slot, 0, 0, Op.CULL])
        return wait(1)[0]

    def _wants_growth(self, situation: Situation, host: int) -> bool:
        settings, epoch = self.settings, int(situation.signals.epoch[host])
        if not self.plants_in(situation.sites):
            return False
        alone = settings.first_epoch
        if _is_of_features(situation.sites):
            alone = max(alone, settings.features_first_epoch)
        in_time = int(situation.steps_left[host]) >= settings.time_needed * situation.episode_length
        seeds = int((situation.table.stage[host] == Stage.FOSSILIZED).sum())
        return alone <= epoch and in_time and seeds < settings.max_seeds

    def _germinate(self, situation: Situation, host: int, tried: list[int]) -> Tensor:
        """The first kind in order that was not tried and can be paid, in the best place that is free for it."""
        masks, offers, settings = situation.masks, situation.catalogue, self.settings
        blend = Blend.INSTANT
        in_time = masks.slot[host, Op.GERMINATE] & masks.blend[host, blend]
        owed = situation.rent(offers.params[None], offers.flops[None])[host]
        spent = sum(_owed(situation, host, slot) for slot in range(len(situation.sites)))
        most = settings.more_rent if situation.table.occupied[host].any() else settings.max_rent
        open_to = in_time[:, None] & masks.blueprint[host] & (owed + spent <= most)
        for kind in settings.order:
            if kind in tried or kind >= open_to.shape[1]:
                continue
            free = [slot for slot in best_places(situation) if open_to[slot, kind]]
            if free:
                tried.append(kind)
                return torch.tensor([free[0], kind, blend, Op.GERMINATE])
        return wait(1)[0]


def best_places(situation: Situation) -> list[int]:
    """Slots, those first where bypasses bring most: in the middle of convolutions, at the output of features."""
    slots = range(len(situation.sites))
    if _is_of_features(situation.sites):
        return list(reversed(slots))
    middle = (len(slots) - 1) // 2
    return sorted(slots, key=lambda slot: (abs(slot - middle), slot))


def _is_of_features(sites: Sequence[Site]) -> bool:
    return all(site.shape.family is Family.FEATURES for site in sites)


def _owed(situation: Situation, host: int, slot: int) -> float:
    """The rent of what is planted in `slot`; 0 without a seed."""
    return rent(
        float(situation.table.params[host, slot]),
        situation.host_params,
        float(situation.price[host]),
        float(situation.planted_flops[host, slot]),
        situation.host_flops,
        situation.flop_price,
    )
