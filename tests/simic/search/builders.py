"""Small spaces of plans, random plans in them, and searches that take seconds."""

import random
from typing import Any

import torch

from esper.leyline import Blend
from esper.simic.search import Plan, PlanSearch, PlanSpace, SearchSettings
from esper.simic.search.plans import BLENDS, staggered
from esper.tamiyo import Planting
from esper.tolaria import EpisodeSettings
from tests.worlds import tiny_task


def small_space(**overrides: Any) -> PlanSpace:
    """Three slots, four kinds of which one does not fit slot 1, two moments."""
    fits = torch.ones(3, 4, dtype=torch.bool)
    fits[1, 2] = False
    params = torch.arange(1, 13).view(3, 4) * 10
    fields: dict[str, Any] = {"fits": fits, "params": params, "host_params": 1000, "moments": (0, 5), "max_seeds": 2}
    return PlanSpace(**(fields | overrides))


def every_planting(space: PlanSpace) -> list[Planting]:
    slots, kinds, _, _ = space.shape
    return [
        Planting(step, slot, kind, blend)
        for slot in range(slots)
        for kind in range(kinds)
        if space.fits[slot, kind]
        for step in space.moments
        for blend in BLENDS
    ]


def every_plan(space: PlanSpace) -> list[Plan]:
    """Of at most two seeds; plantings of one moment are not staggered."""
    single = every_planting(space)
    pairs = [(one, other) for one in single for other in single if one.slot < other.slot]
    return [(), *((one,) for one in single), *pairs]


def random_plans(space: PlanSpace, count: int, seed: int = 0) -> list[Plan]:
    return [staggered(plan) for plan in random.Random(seed).choices(every_plan(space), k=count)]


def tiny_search(episode: EpisodeSettings | None = None, **settings: Any) -> PlanSearch:
    small: dict[str, Any] = {
        "episodes": 12, "hosts": 6, "seeds_per_batch": 2, "max_seeds": 2, "prices": (0.03,), "finalists": 4,
        "final_seeds": 8,
    }  # fmt: skip
    return PlanSearch(
        tiny_task(),
        SearchSettings(**(small | settings)),
        episode or EpisodeSettings(length=9, merit=False),
        executor="native",
    )


INSTANT = Blend.INSTANT
