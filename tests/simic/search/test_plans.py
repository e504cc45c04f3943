"""Plans: their features, what is the best of them, and which are refused."""

import pytest
import torch

from esper.leyline import Blend, InputError
from esper.simic.search import Plan, PlanSpace, show_plan
from esper.simic.search.plans import staggered
from esper.tamiyo import Planting
from esper.tolaria import EpisodeSettings, Population
from tests.simic.search.builders import INSTANT, every_plan, small_space
from tests.worlds import tiny_task

_PRICE = 0.1


def _value(space: PlanSpace, plan: Plan, effects: torch.Tensor) -> float:
    return float(space.features([plan]) @ effects) - space.rent(plan, _PRICE)


def _brute_force(space: PlanSpace, effects: torch.Tensor) -> float:
    return max(_value(space, plan, effects) for plan in every_plan(space))


@pytest.mark.parametrize("seed", range(5))
def test_the_best_single_planting_is_that_of_all(seed: int) -> None:
    space = small_space(max_seeds=1)
    effects = torch.randn(len(space.prior()), generator=torch.Generator().manual_seed(seed)).double()
    single = max(_value(space, plan, effects) for plan in every_plan(space) if len(plan) <= 1)
    assert _value(space, space.best_plan(effects, _PRICE), effects) == pytest.approx(single)


@pytest.mark.parametrize("seed", range(5))
def test_the_best_of_plans_without_interactions_is_that_of_all(seed: int) -> None:
    space = small_space()
    effects = torch.randn(len(space.prior()), generator=torch.Generator().manual_seed(seed)).double()
    pairs = space.sizes()["kinds"] + space.sizes()["places"]
    effects[-pairs:] = 0.0
    assert _value(space, space.best_plan(effects, _PRICE), effects) == pytest.approx(_brute_force(space, effects))


@pytest.mark.parametrize("seed", range(8))
def test_with_interactions_the_last_planting_is_the_best_beside_the_first(seed: int) -> None:
    space = small_space()
    effects = torch.randn(len(space.prior()), generator=torch.Generator().manual_seed(seed)).double()
    effects[: space.sizes()["kind"]] += 3.0  # so that plans have two seeds
    best = space.best_plan(effects, _PRICE)
    assert len(best) == 2
    for kept in best:
        others = [plan for plan in every_plan(space) if len(plan) == 2 and kept.slot in {one.slot for one in plan}]
        beside = [_value(space, plan, effects) for plan in others if any(_same(kept, one) for one in plan)]
        if _value(space, best, effects) == pytest.approx(max(beside)):
            return
    pytest.fail("neither planting is the best beside the other")


def _same(one: Planting, other: Planting) -> bool:
    """But for the step, which staggering changes."""
    return (one.slot, one.blueprint, one.blend) == (other.slot, other.blueprint, other.blend)


def test_a_pair_that_pays_together_is_found_whichever_slot_comes_first() -> None:
    space = small_space()
    pairs = ((Planting(0, 0, 1, INSTANT), Planting(0, 2, 3, INSTANT)), (Planting(0, 1, 3), Planting(5, 2, 0)))
    for first, second in pairs:
        effects = space.features([(first, second)])[0] - 0.5
        # One of the two is the best of single ones; with it in place, the other is worth most.
        plan = space.best_plan(effects, 0.0)
        assert {(planting.slot, planting.blueprint) for planting in plan} == {
            (planting.slot, planting.blueprint) for planting in (first, second)
        }


def test_features_tell_apart_plans_of_different_kinds_and_not_the_order() -> None:
    space = small_space()
    plans = [plan for plan in every_plan(space) if len({planting.blueprint for planting in plan}) == len(plan)]
    assert len({tuple(row.tolist()) for row in space.features(plans)}) == len(plans)
    pair = (Planting(0, 0, 3, INSTANT), Planting(5, 2, 1))
    assert torch.equal(*space.features([pair, pair[::-1]]))


def test_a_plan_of_nothing_has_no_features_and_no_rent() -> None:
    space = small_space()
    assert not space.features([()]).any()
    assert space.rent((), _PRICE) == 0.0


def test_rent_is_that_of_the_parameters_added() -> None:
    space = small_space()
    assert space.rent((Planting(0, 0, 0), Planting(0, 2, 3)), 0.5) == pytest.approx(100 * 0.5 * (10 + 120) / 1000)


def test_plans_stay_within_the_budget() -> None:
    space = small_space(budget=100)
    effects = torch.ones(len(space.prior())).double()
    plan = space.best_plan(effects, 0.0)
    assert len(plan) == 2
    assert space.added(plan) <= 100


def test_nothing_is_planted_where_everything_costs_more_than_it_brings() -> None:
    space = small_space()
    assert space.best_plan(torch.full((len(space.prior()),), -1.0).double(), _PRICE) == ()


def test_plantings_of_one_moment_follow_each_other() -> None:
    plan = staggered((Planting(2, 2, 0), Planting(0, 1, 0), Planting(2, 0, 3), Planting(0, 0, 0)))
    assert [planting.step for planting in plan] == [0, 1, 2, 3]
    assert [planting.slot for planting in plan] == [0, 1, 0, 2]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ((Planting(0, 3, 0),), "slots 0 to 2"),
        ((Planting(0, 0, 4),), "kinds 0 to 3"),
        ((Planting(0, 1, 2),), "kind 2 does not fit slot 1"),
        ((Planting(0, 0, 0), Planting(5, 0, 1)), "twice in one slot"),
        ((Planting(0, 2, 3),), "adds 120 parameters; the budget is 100"),
    ],
)
def test_plans_that_no_mask_allows_are_refused(plan: Plan, message: str) -> None:
    with pytest.raises(InputError, match=message):
        small_space(budget=100).check(plan)


def test_the_space_of_a_host_is_what_its_masks_allow() -> None:
    situation = Population(tiny_task(), 1).situation
    space = PlanSpace.of(situation)
    assert torch.equal(space.fits, situation.masks.blueprint[0])
    assert space.moments == (0, 2, 5, 9)


def test_episodes_that_are_too_short_for_any_plan_are_refused() -> None:
    short = Population(tiny_task(), 1, EpisodeSettings(length=5)).situation
    with pytest.raises(InputError, match=r"episodes of 5 epochs are too short .* at least 8"):
        PlanSpace.of(short)


def test_plans_are_shown_as_their_plantings() -> None:
    assert show_plan(()) == "nothing"
    assert show_plan((Planting(0, 3, 6, Blend.INSTANT), Planting(1, 2, 0))) == "0:3:6:instant 1:2:0"
