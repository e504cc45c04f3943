"""What decisions are worth under a search's model, against adding up the features of whole plans."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from esper.simic.search import Plan, PlanSpace
from esper.simic.search.plans import BLENDS
from esper.simic.search.values import DECIDE_BY, PlanValues
from esper.tamiyo import Planting
from tests.simic.search.builders import every_plan, small_space

PRICE = 0.05


def drawn_effects(space: PlanSpace, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return space.prior() * torch.randn(len(space.prior()), generator=generator, dtype=torch.float64)


def worth(space: PlanSpace, effects: Tensor, plan: Plan) -> float:
    return float(space.features([plan]) @ effects) - space.rent(plan, PRICE)


@pytest.mark.parametrize("seed", range(3))
def test_the_best_decision_at_the_start_is_the_first_planting_of_the_best_plan(seed: int) -> None:
    # With a moment for each step, plans of two seeds whose second comes one step later are all there is.
    space = replace(small_space(), moments=(0, 1))
    effects = drawn_effects(space, seed)
    values = PlanValues(space, effects).planting((), 0, PRICE)
    expected = torch.full_like(values, -torch.inf)
    for plan in every_plan(space):
        in_order = sorted(plan, key=lambda planting: planting.step)
        if plan and [planting.step for planting in in_order] == list(range(len(plan))):
            place = in_order[0].slot, in_order[0].blueprint, BLENDS.index(in_order[0].blend)
            expected[place] = max(float(expected[place]), worth(space, effects, tuple(in_order)))
    torch.testing.assert_close(values, expected)


def test_what_is_planted_counts_by_its_pairs_and_its_number() -> None:
    space = small_space()
    effects = drawn_effects(space)
    values = PlanValues(space, effects).planting(((2, 1),), 0, PRICE)
    before = (Planting(0, 2, 1, BLENDS[0]),)
    for slot, kind in ((0, 0), (1, 3)):
        for index, blend in enumerate(BLENDS):
            added = worth(space, effects, (*before, Planting(0, slot, kind, blend))) - worth(space, effects, before)
            assert float(values[slot, kind, index]) == pytest.approx(added)
    assert (values[2] == -torch.inf).all()  # the slot is taken
    assert (values[1, 2] == -torch.inf).all()  # does not fit


def test_between_moments_effects_are_in_proportion() -> None:
    space = replace(small_space(), max_seeds=1)
    values = PlanValues(space, drawn_effects(space))
    early, later = (values.planting((), step, PRICE) for step in (0, 5))
    between = values.planting((), 2, PRICE)
    fits = space.fits.unsqueeze(2).expand_as(early)
    torch.testing.assert_close(between[fits], (0.6 * early + 0.4 * later)[fits])


def test_budgets_seeds_and_time_leave_nothing() -> None:
    space = small_space()
    effects = drawn_effects(space)
    tight = PlanValues(replace(space, budget=45), effects)
    assert (tight.planting((), 0, PRICE).isfinite().any(2) == (space.fits & (space.params <= 45))).all()
    assert (tight.planting(((0, 3),), 0, PRICE) == -torch.inf).all()  # 40 of 45 are spent
    values = PlanValues(space, effects)
    assert (values.planting(((0, 0), (1, 0)), 0, PRICE) == -torch.inf).all()  # as many as may be
    assert (values.planting((), space.last_step + 1, PRICE) == -torch.inf).all()


@pytest.mark.parametrize("budget", [30, 45, 60, 75, 1000])
def test_the_best_decision_within_a_host_s_own_budget_is_that_of_plans_within_it(budget: int) -> None:
    space = replace(small_space(), moments=(0, 1))
    effects = drawn_effects(space, 1)
    values = PlanValues(space, effects).planting((), 0, PRICE, budget)
    expected = torch.full_like(values, -torch.inf)
    for plan in every_plan(space):
        in_order = sorted(plan, key=lambda planting: planting.step)
        within = space.added(plan) <= budget
        if plan and within and [planting.step for planting in in_order] == list(range(len(plan))):
            place = in_order[0].slot, in_order[0].blueprint, BLENDS.index(in_order[0].blend)
            expected[place] = max(float(expected[place]), worth(space, effects, tuple(in_order)))
    torch.testing.assert_close(values, expected)


def test_played_plans_beyond_the_budget_count_nowhere() -> None:
    space = small_space()
    plan = (Planting(0, 0, 0, BLENDS[0]), Planting(1, 2, 1, BLENDS[0]))
    values = PlanValues(space, drawn_effects(space), {(): 0.0, plan: 50.0})
    cost = space.added(plan)
    assert float(values.planting((), 0, PRICE, cost)[0, 0, 0]) > 40
    assert float(values.planting((), 0, PRICE, cost - 1)[0, 0, 0]) < 40


def test_waiting_is_worth_the_best_that_comes_later_until_it_is_now_or_never() -> None:
    space = small_space()
    values = PlanValues(space, drawn_effects(space))
    later = [float(values.planting((), step, PRICE).max()) for step in range(1, DECIDE_BY + 1)]
    assert values.waiting((), 0, PRICE) == pytest.approx(max(0.0, *later))
    assert values.waiting((), DECIDE_BY, PRICE) == 0.0
    assert PlanValues(space, -100 * torch.ones(len(space.prior())).double()).waiting((), 0, PRICE) == 0.0


def test_plans_that_were_played_count_as_they_came_out_and_other_gains_by_half() -> None:
    space = small_space()
    effects = drawn_effects(space)
    plan = (Planting(0, 0, 0, BLENDS[0]), Planting(1, 2, 1, BLENDS[0]))
    alone, played = PlanValues(space, effects), PlanValues(space, effects, {(): 0.0, plan: 50.0})
    worth_it = 50.0 - space.rent(plan, PRICE)
    values, expected = played.planting((), 0, PRICE), alone.planting((), 0, PRICE)
    # Either of its plantings can be the first: then the other one is late by an epoch, and so is its first.
    assert float(values[0, 0, 0]) == pytest.approx(worth_it)
    assert float(values[2, 1, 0]) == pytest.approx(worth_it - 0.25)
    # With one of them planted only the other leads there; what is planted is worth what the model expects of it.
    rest = played.planting(((0, 0),), 1, PRICE)
    begun = worth(space, effects, plan[:1])
    assert float(rest[2, 1, 0]) == pytest.approx(worth_it - begun)
    other = torch.ones(space.shape[0], space.shape[1], len(BLENDS), dtype=torch.bool)
    other[0, 0, 0] = other[2, 1, 0] = False
    halved = torch.where(expected > 0, 0.5 * expected, expected)
    torch.testing.assert_close(values[other], halved[other])
    assert (played.planting(((1, 1),), 1, PRICE) < 50).all()  # no way leads there any more
