"""Plans: what is planted where, when and how, and the linear features by which plans are compared.

A plan is a tuple of `Planting`, at most one per slot, in the order of their steps. Its features count kinds, places
(slot and kind), stretches between two slots, moments and ways of joining, and pairs of kinds and of places.
What a place brings is thus the sum of what its kind, its slot, the place itself and the stretches on both sides of it
bring, so that one place tells of others too, most of all of its neighbours.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from esper.kasmina import UNLIMITED
from esper.leyline import EPOCHS_TO_DECIDE, POINTS, Blend, InputError, charge
from esper.tamiyo import Planting
from esper.tolaria import Situation

Plan = tuple[Planting, ...]

BLENDS = (Blend.INSTANT, Blend.LINEAR)
"""The ways of joining that are tried; the others are close to linear."""
_MOMENTS = (0.0, 0.08, 0.2, 0.36)
"""When seeds are planted, as shares of the episode."""
_DELAY = -0.5
"""Points that waiting for the second moment is expected to cost; later ones cost in proportion."""
_BLENDING = -1.0
"""Points that a blend other than instant is expected to cost."""
_DEVIATIONS = {
    "kind": 3.0,
    "slot": 1.5,
    "place": 1.0,
    "stretch": 1.0,
    "moment": 0.5,
    "kind_moment": 0.3,
    "blend": 0.5,
    "kind_blend": 0.3,
    "count": 1.5,
    "kinds": 1.5,
    "places": 1.0,
}
"""Prior standard deviations of the effects of features, in points: pairs are shrunk more than single plantings."""


@dataclass(frozen=True)
class PlanSpace:
    """The plans for the hosts of a task, and their features.

    S slots, B kinds, M moments, L blends; a candidate is one planting, `[S, B, M, L]`.
    """

    fits: Tensor
    """`[S, B]` bool."""
    params: Tensor
    """`[S, B]`: what each kind adds in each slot."""
    host_params: int
    moments: tuple[int, ...]
    """Steps in which seeds are planted."""
    max_seeds: int = 3
    budget: int = UNLIMITED

    @classmethod
    def of(cls, situation: Situation, max_seeds: int = 3) -> Self:
        """The plans for hosts in this situation; their catalogue, budget and length count."""
        last = situation.episode_length - max(EPOCHS_TO_DECIDE[blend] for blend in BLENDS)
        moments = sorted({round(share * situation.episode_length) for share in _MOMENTS})
        moments = [step for step in moments if step + max_seeds - 1 <= last]
        if not moments:
            raise InputError(
                f"episodes of {situation.episode_length} epochs are too short to search for plans; "
                f"give them at least {max(EPOCHS_TO_DECIDE.values()) + max_seeds - 1}"
            )
        catalogue = situation.catalogue
        budget = int(situation.budget[0])
        return cls(catalogue.fits, catalogue.params, situation.host_params, tuple(moments), max_seeds, budget)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """S, B, M and L."""
        slots, kinds = self.fits.shape
        return slots, kinds, len(self.moments), len(BLENDS)

    @property
    def last_step(self) -> int:
        """The latest step in which a plan plants."""
        return self.moments[-1] + self.max_seeds - 1

    def sizes(self) -> dict[str, int]:
        """How many features of each group there are, in the order in which they stand."""
        slots, kinds, moments, blends = self.shape
        return {
            "kind": kinds,
            "slot": slots,
            "place": slots * kinds,
            "stretch": (slots + 1) * kinds,
            "moment": moments,
            "kind_moment": kinds * moments,
            "blend": blends,
            "kind_blend": kinds * blends,
            "count": self.max_seeds,
            "kinds": kinds * kinds,
            "places": (slots * kinds) ** 2,
        }

    def prior(self) -> Tensor:
        """`[F]`: the prior standard deviation of each feature's effect, in points."""
        return torch.cat([torch.full((size,), _DEVIATIONS[name]).double() for name, size in self.sizes().items()])

    def prior_mean(self) -> Tensor:
        """`[F]`: the expected effects, in points: seeds that come early and join at once do better (docs/growth.md)."""
        parts = {name: torch.zeros(size, dtype=torch.float64) for name, size in self.sizes().items()}
        first, *later = self.moments
        for index, step in enumerate(later, start=1):
            parts["moment"][index] = _DELAY * (step - first) / (later[0] - first)
        parts["blend"][1:] = _BLENDING
        return torch.cat(list(parts.values()))

    def features(self, plans: Sequence[Plan]) -> Tensor:
        """`[n, F]`, float64."""
        starts = dict(zip(self.sizes(), itertools.accumulate(self.sizes().values(), initial=0), strict=False))
        rows = torch.zeros(len(plans), sum(self.sizes().values()), dtype=torch.float64)
        for row, plan in zip(rows, plans, strict=True):
            for name, index in self._active(plan):
                row[starts[name] + index] += 1.0
        return rows

    def _active(self, plan: Plan) -> list[tuple[str, int]]:
        """The features of a plan, as group and place in it."""
        _, kinds, moments, blends = self.shape
        active = []
        for planting in plan:
            kind, moment, blend = planting.blueprint, self._moment(planting), BLENDS.index(planting.blend)
            active += [
                ("kind", kind),
                ("slot", planting.slot),
                ("place", planting.slot * kinds + kind),
                ("stretch", planting.slot * kinds + kind),
                ("stretch", (planting.slot + 1) * kinds + kind),
                ("moment", moment),
                ("kind_moment", kind * moments + moment),
                ("blend", blend),
                ("kind_blend", kind * blends + blend),
            ]
        active += [("count", count) for count in range(len(plan))]
        for one, other in itertools.combinations(sorted(plan, key=lambda planting: planting.slot), 2):
            places = [planting.slot * kinds + planting.blueprint for planting in (one, other)]
            few, many = sorted((one.blueprint, other.blueprint))
            active += [("kinds", few * kinds + many), ("places", places[0] * self.fits.numel() + places[1])]
        return active

    def _moment(self, planting: Planting) -> int:
        """Which moment a planting belongs to; one that waits for another of the same moment is a few steps late."""
        return max(index for index, step in enumerate(self.moments) if step <= planting.step)

    def rent(self, plan: Plan, price: float) -> float:
        """In points."""
        return POINTS * charge(float(self.added(plan)), self.host_params, price)

    def added(self, plan: Plan) -> int:
        """Parameters that a plan adds."""
        return sum(int(self.params[planting.slot, planting.blueprint]) for planting in plan)

    def best_plan(self, effects: Tensor, price: float, most: int | None = None) -> Plan:
        """The plan of at most so many seeds with the largest sum of `effects [F]` minus its rent.

        It is made by adding one planting after the other, and exchanging each once the others are there.
        """
        groups = dict(zip(self.sizes(), effects.split(list(self.sizes().values())), strict=True))
        most = self.max_seeds if most is None else most
        plan, value = self._grown((), groups, price, most)
        for planting in plan:
            others = tuple(other for other in plan if other != planting)
            changed, better = self._grown(others, groups, price, most)
            if better > value:
                plan, value = changed, better
        return staggered(plan)

    def _grown(self, plan: Plan, groups: dict[str, Tensor], price: float, most: int) -> tuple[Plan, float]:
        value = self._value(plan, groups, price)
        while len(plan) < most:
            gains = self._gains(plan, groups, price)
            best = int(gains.argmax())
            if float(gains.flatten()[best]) <= 0:
                break
            slot, kind, moment, blend = (int(part) for part in torch.unravel_index(torch.tensor(best), gains.shape))
            plan = (*plan, Planting(self.moments[moment], slot, kind, BLENDS[blend]))
            value += float(gains.flatten()[best])
        return plan, value

    def _value(self, plan: Plan, groups: dict[str, Tensor], price: float) -> float:
        return sum(float(groups[name][index]) for name, index in self._active(plan)) - self.rent(plan, price)

    def _gains(self, plan: Plan, groups: dict[str, Tensor], price: float) -> Tensor:
        """`[S, B, M, L]`: what one planting more would add; minus infinity where it is not possible."""
        slots, kinds, moments, blends = self.shape
        place = groups["place"].view(slots, kinds) + groups["kind"] + groups["slot"][:, None]
        stretch = groups["stretch"].view(slots + 1, kinds)
        place = place + stretch[:-1] + stretch[1:]
        place = place + groups["count"][len(plan)] - POINTS * charge(self.params.double(), self.host_params, price)
        possible = self.fits & (self.params <= self.budget - self.added(plan))
        for planting in plan:
            pairs, kind = groups["kinds"].view(kinds, kinds), planting.blueprint
            place = place + torch.where(torch.arange(kinds) <= kind, pairs[:, kind], pairs[kind])
            both = groups["places"].view(slots, kinds, slots, kinds)
            earlier = torch.arange(slots)[:, None] < planting.slot
            place = place + torch.where(earlier, both[:, :, planting.slot, kind], both[planting.slot, kind])
            possible = possible & (torch.arange(slots) != planting.slot)[:, None]
        place = place.masked_fill(~possible, -torch.inf)
        when = groups["kind_moment"].view(kinds, moments) + groups["moment"]
        how = groups["kind_blend"].view(kinds, blends) + groups["blend"]
        return place[:, :, None, None] + when[:, :, None] + how[:, None, :]

    def check(self, plan: Plan) -> None:
        """Refuse a plan that no mask would allow."""
        slots, kinds = self.fits.shape
        for planting in plan:
            if not (planting.slot < slots and planting.blueprint < kinds):
                raise InputError(
                    f"the plan {show_plan(plan)} names slot {planting.slot} and kind {planting.blueprint}; "
                    f"hosts have slots 0 to {slots - 1} and kinds 0 to {kinds - 1}"
                )
            if not self.fits[planting.slot, planting.blueprint]:
                raise InputError(
                    f"the plan {show_plan(plan)} is not legal: "
                    f"kind {planting.blueprint} does not fit slot {planting.slot}"
                )
        if len({planting.slot for planting in plan}) < len(plan):
            raise InputError(f"the plan {show_plan(plan)} plants twice in one slot")
        if self.added(plan) > self.budget:
            raise InputError(
                f"the plan {show_plan(plan)} adds {self.added(plan):,} parameters; the budget is {self.budget:,}"
            )


def staggered(plan: Plan) -> Plan:
    """The plan in the order of its steps, with one planting in a step: hosts take one action at a time."""
    placed: list[Planting] = []
    for planting in sorted(plan, key=lambda planting: (planting.step, planting.slot)):
        earliest = placed[-1].step + 1 if placed else 0
        placed.append(replace(planting, step=max(planting.step, earliest)))
    return tuple(placed)


def show_plan(plan: Plan) -> str:
    """Its plantings as `Planting` shows them, or "nothing"."""
    return " ".join(map(str, plan)) or "nothing"
