"""What decisions are worth under the model of a search: the best that can still come of what is planted.

The model is linear in the features of plans (`plans.py`), so what a planting adds beside others follows from its place,
its moment and its pairs with them. Between the moments that were searched, effects are interpolated, so that waiting an
epoch costs its share. All values are in points, relative to what is planted now, with the rent of what is added paid.

The best of many plans that were never played looks better than it is. So where what is planted can still become one of
the plans that were played again from fresh seeds, what that came to counts, and other gains count by half.
"""

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from esper.kasmina import UNLIMITED
from esper.leyline import POINTS, charge
from esper.simic.search.plans import BLENDS, Plan, PlanSpace
from esper.tamiyo import Planting

DECIDE_BY = 2
"""The step until which it may pay to wait for evidence."""
_LATER = -0.25
"""Points that a planting loses with every epoch after the last moment that was searched, or that its plan is late."""
_UNPLAYED = 0.5
"""By how much gains count that only the model expects."""

Places = tuple[tuple[int, int], ...]
"""Slot and kind of every seed that is there."""


class PlanValues:
    """Values of decisions on hosts of one task, from the posterior mean `effects [F]` of the features of its plans.

    `played` are plans that were played again, with what they gain before rent.
    """

    def __init__(self, space: PlanSpace, effects: Tensor, played: Mapping[Plan, float] | None = None) -> None:
        self.space = space
        self._played = dict(played or {})
        self._all_effects = effects
        self._effects: dict[str, Tensor] = dict(
            zip(space.sizes(), effects.split(list(space.sizes().values())), strict=True)
        )
        self._known: dict[tuple[Places, int, float, int], Tensor] = {}

    def planting(self, planted: Places, step: int, price: float, budget: int = UNLIMITED) -> Tensor:
        """`[S, B, L]`: what each planting in this step adds, with the best that may follow; -inf if impossible.

        What follows is planted one a step, at most two more, each the best beside those before it. `budget` is what all
        seeds together may add.
        """
        left = min(budget, self.space.budget) - sum(int(self.space.params[place]) for place in planted)
        key = planted, step, price, min(left, self._most)
        if key not in self._known:
            expected = self._think(*key)
            shrunk = torch.where(expected > 0, _UNPLAYED * expected, expected) if self._played else expected
            self._known[key] = self._with_played(shrunk, *key)
        return self._known[key]

    def waiting(self, planted: Places, step: int, price: float, budget: int = UNLIMITED) -> float:
        """What the best planting adds in a later step, as long as evidence is waited for; 0 if none pays.

        After that it is now or never. Otherwise whoever does not know which planting is best would wait for ever, since
        one epoch costs little, and the model, which knows, would always find it worth it.
        """
        later = range(step + 1, DECIDE_BY + 1)
        return max([0.0, *(float(self.planting(planted, other, price, budget).max()) for other in later)])

    def _with_played(self, values: Tensor, planted: Places, step: int, price: float, budget_left: int) -> Tensor:
        """`values` with those of plantings that lead to plans that were played again."""
        now = self._worth(planted, price) if self._played else 0.0
        for plan, gain in self._played.items():
            left = [planting for planting in plan if (planting.slot, planting.blueprint) not in planted]
            if len(plan) - len(left) < len(planted) or step > self.space.last_step:
                continue
            if self.space.added(tuple(left)) > budget_left:
                continue
            for first in left:
                order = [first, *(planting for planting in left if planting is not first)]
                late = sum(max(0, step + place - planting.step) for place, planting in enumerate(order))
                value = gain - self.space.rent(plan, price) - now + _LATER * late
                at = first.slot, first.blueprint, BLENDS.index(first.blend)
                values[at] = values[at].clamp(min=value)
        return values

    def _worth(self, planted: Places, price: float) -> float:
        """What is planted by itself, rent paid: as it was played, or as the model expects."""
        for plan, gain in self._played.items():
            if sorted((planting.slot, planting.blueprint) for planting in plan) == sorted(planted):
                return gain - self.space.rent(plan, price)
        plan = tuple(Planting(self.space.moments[0], slot, kind, BLENDS[0]) for slot, kind in planted)
        return float(self.space.features([plan]) @ self._all_effects) - self.space.rent(plan, price)

    def _think(self, planted: Places, step: int, price: float, budget_left: int) -> Tensor:
        slots, kinds, _, blends = self.space.shape
        room = self.space.max_seeds - len(planted)
        if room < 1 or step > self.space.last_step:
            return torch.full((slots, kinds, blends), -torch.inf, dtype=torch.float64)
        params = self.space.params.flatten()
        first = self._alone(planted, len(planted), step, price)
        follows = torch.zeros(slots * kinds, dtype=torch.float64)
        if room > 1:
            second = self._alone(planted, len(planted) + 1, step + 1, price).amax(2).flatten() + self._pairs
            added = params[:, None] + params
            follows, chosen = second.masked_fill(added > budget_left, -torch.inf).max(1)
            if room > 2:
                third = self._alone(planted, len(planted) + 2, step + 2, price).amax(2).flatten()
                third = third + self._pairs + self._pairs[chosen]
                added = added + params[chosen][:, None]
                follows = follows + third.masked_fill(added > budget_left, -torch.inf).amax(1).clamp(min=0)
        total = first + follows.clamp(min=0).view(slots, kinds, 1)
        return total.masked_fill((self.space.params > budget_left).unsqueeze(2), -torch.inf)

    @cached_property
    def _most(self) -> int:
        """Parameters that no plan exceeds: a larger budget is as good as none."""
        return self.space.max_seeds * int(self.space.params.max())

    def _alone(self, planted: Places, count: int, step: int, price: float) -> Tensor:
        """`[S, B, L]`: what one planting adds beside `planted`, as the seed with this number, counted from 0."""
        space, kinds = self.space, self.space.shape[1]
        rent = POINTS * charge(space.params.double(), space.host_params, price)
        values = (self._place + self._effects["count"][count] + self._moment(step) - rent).flatten()
        for slot, kind in planted:
            values = values + self._pairs[slot * kinds + kind]
        by_place = values.view(space.fits.shape).masked_fill(~space.fits, -torch.inf)
        return by_place.unsqueeze(2) + self._blend

    @cached_property
    def _place(self) -> Tensor:
        """`[S, B]`: what a kind in a slot adds, whenever and beside whatever."""
        slots, kinds, _, _ = self.space.shape
        effects, stretch = self._effects, self._effects["stretch"].view(slots + 1, kinds)
        place = effects["place"].view(slots, kinds) + effects["kind"] + effects["slot"][:, None]
        place += stretch[:-1] + stretch[1:]
        return place

    @cached_property
    def _blend(self) -> Tensor:
        """`[B, L]`"""
        _, kinds, _, blends = self.space.shape
        return self._effects["blend"] + self._effects["kind_blend"].view(kinds, blends)

    @cached_property
    def _pairs(self) -> Tensor:
        """`[S * B, S * B]`: what two plantings add together beyond what each does; -inf for two in one slot."""
        slots, kinds, _, _ = self.space.shape
        of_kinds = self._effects["kinds"].view(kinds, kinds)
        of_kinds = of_kinds.triu() + of_kinds.triu(1).T
        of_places = self._effects["places"].view(slots, kinds, slots, kinds)
        number = torch.arange(slots)
        of_places = torch.where((number[:, None] < number)[:, None, :, None], of_places, 0.0)
        both = of_places + of_places.permute(2, 3, 0, 1) + of_kinds[:, None]
        same = (number[:, None] == number)[:, None, :, None]
        apart: Tensor = both.masked_fill(same, -torch.inf)
        return apart.reshape(slots * kinds, slots * kinds)

    def _moment(self, step: int) -> Tensor:
        """`[B]`: what planting a kind in this step adds, between moments in proportion."""
        _, kinds, moments, _ = self.space.shape
        effects = self._effects["moment"] + self._effects["kind_moment"].view(kinds, moments)
        at = self.space.moments
        if step >= at[-1]:
            last: Tensor = effects[:, -1] + _LATER * (step - at[-1])
            return last
        index = max(number for number, moment in enumerate(at) if moment <= step)
        share = (step - at[index]) / (at[index + 1] - at[index])
        between: Tensor = (1 - share) * effects[:, index] + share * effects[:, index + 1]
        return between
