"""Plan search on a tiny task: what is played, that it goes on after a kill, and what it refuses."""

from typing import Any

import pytest
import torch

from esper.leyline import InputError, OtherCatalogueError
from esper.simic.search import Plan, PlanSearch, SearchSettings
from esper.tamiyo import Never, Schedule, run_episodes
from esper.tolaria import EpisodeSettings
from tests.simic.search.builders import tiny_search
from tests.worlds import tiny_task


@pytest.fixture(scope="module")
def finished() -> PlanSearch:
    search = tiny_search()
    search.run()
    return search


def test_a_batch_shares_seeds_and_leaves_one_host_of_each_alone(finished: PlanSearch) -> None:
    for first in (0, 6):
        plans, seeds = finished.played.plans[first : first + 6], finished.played.seeds[first : first + 6]
        assert len(set(seeds)) == 2
        assert {seed for plan, seed in zip(plans, seeds, strict=True) if not plan} == set(seeds)
    assert set(finished.played.seeds[:6]).isdisjoint(finished.played.seeds[6:12])


def test_finalists_are_played_from_the_same_fresh_seeds_and_fewer_go_on(finished: PlanSearch) -> None:
    by_seed: dict[int, list[Plan]] = {}
    for plan, seed in zip(finished.played.plans[12:], finished.played.seeds[12:], strict=True):
        by_seed.setdefault(seed, []).append(plan)
    assert len(by_seed) == 8
    assert set(by_seed).isdisjoint(finished.played.seeds[:12])
    rounds = list(by_seed.values())
    assert all(() in plans and len(set(plans)) == len(plans) for plans in rounds)
    assert rounds[0] == rounds[1]
    assert all(set(later) <= set(rounds[0]) for later in rounds)
    assert [len(plans) for plans in rounds] == [5, 5, 3, 3, 2, 2, 2, 2]


def test_scores_are_those_of_the_same_plan_and_seed_by_themselves(finished: PlanSearch) -> None:
    settings = EpisodeSettings(length=9, merit=False)
    for place in (0, 3, 5, 14):
        plan, seed = finished.played.plans[place], finished.played.seeds[place]
        controller = Schedule(plan) if plan else Never()
        (alone,) = run_episodes(tiny_task(), controller, [seed], settings, executor="native", test=False)
        assert finished.played.scores[place] == pytest.approx(100 * alone.val_score)


def test_every_plan_that_is_played_is_legal(finished: PlanSearch) -> None:
    for plan in finished.played.plans:
        finished.space.check(plan)


def test_what_is_found_is_the_best_of_the_posterior_means(finished: PlanSearch) -> None:
    found = finished.finding(0.03)
    posterior = finished.posterior()
    ranked = posterior.ranked(posterior.mean_effects(), 0.03)
    assert found.expected == max(value for plan, value in ranked if plan in finished.played.plans[12:])
    assert found.added_params == finished.space.added(found.plan)
    assert found.described.count(" from epoch ") == len(found.plan)


def test_a_high_price_forbids_everything(finished: PlanSearch) -> None:
    assert finished.finding(1000.0).plan == ()


def test_a_search_goes_on_the_same_from_any_batch(finished: PlanSearch) -> None:
    states: list[dict[str, Any]] = []
    tiny_search().run(lambda search: states.append(search.state_dict()))
    for state in states:
        resumed = tiny_search()
        resumed.load_state_dict(state)
        resumed.run()
        assert resumed.played == finished.played


def test_another_seed_plays_other_plans_in_other_episodes(finished: PlanSearch) -> None:
    other = tiny_search(seed=1)
    other.run()
    assert other.played.plans != finished.played.plans
    assert set(other.played.seeds).isdisjoint(finished.played.seeds)


def test_a_budget_is_kept() -> None:
    search = tiny_search(EpisodeSettings(length=9, merit=False, budget=20))
    search.run()
    assert max(map(search.space.added, search.played.plans)) <= 20


_WRONG = {
    "lacks scores": lambda state: state.pop("scores"),
    "scores must hold float64": lambda state: state.update(scores=state["scores"].float()),
    "seeds must have shape": lambda state: state.update(seeds=state["seeds"][:-1]),
    "plans must have shape": lambda state: state.update(plans=state["plans"][:, :1]),
    "scores holds NaN": lambda state: state["scores"].fill_(torch.nan),
    "holds a plan that is none": lambda state: state["plans"][:, 0, 3].fill_(9),
    "names slot 50": lambda state: state["plans"][:, 0].copy_(torch.tensor([0, 50, 0, 3])),
    "generator must have shape": lambda state: state.update(generator=state["generator"][:8]),
    "round must be a whole number from 0 to 4": lambda state: state.update(round=5),
    "queued_plans must hold int64": lambda state: state.update(queued_plans=state["queued_plans"].float()),
}


@pytest.mark.parametrize("message", _WRONG)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(finished: PlanSearch, message: str) -> None:
    search = tiny_search()
    state = finished.state_dict()
    _WRONG[message](state)
    with pytest.raises(InputError, match=message):
        search.load_state_dict(state)
    assert search.played.plans == []
    assert torch.equal(search.state_dict()["generator"], tiny_search().state_dict()["generator"])


def test_a_state_of_another_catalogue_is_refused(finished: PlanSearch) -> None:
    state = finished.state_dict()
    state["catalogue"] = {"features": ["norm", "something"]}
    with pytest.raises(OtherCatalogueError, match="features 2 was 'something', here it is 'low_rank'"):
        tiny_search().load_state_dict(state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"episodes": 0}, "episodes must be 1 or more; got 0"),
        ({"hosts": 1}, "hosts must be 2 or more; got 1"),
        ({"hosts": 6, "seeds_per_batch": 4}, "seeds_per_batch must be at most 3"),
        ({"prices": ()}, "prices must be numbers above 0"),
        ({"prices": (0.0,)}, "prices must be numbers above 0"),
        ({"final_seeds": 3}, "final_seeds must be 4 or more; got 3"),
        ({"seed": -1}, "seed must be 0 or more; got -1"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SearchSettings(**settings)


class Watched:
    """A posterior that only notes how many seeds a plan may have."""

    def __init__(self) -> None:
        self.limits: set[int | None] = set()

    def draw_effects(self, generator: torch.Generator) -> None:
        """Nothing is drawn."""

    def best_plan(self, effects: None, price: float, most: int | None = None) -> Plan:
        self.limits.add(most)
        return ()


@pytest.mark.parametrize(("batches", "limits"), [(0, {1, 2, 3}), (1, {1, 2, 3}), (2, {3}), (5, {3})])
def test_only_the_first_two_batches_limit_seeds_by_lot(batches: int, limits: set[int]) -> None:
    search, watched = tiny_search(max_seeds=3), Watched()
    alone: list[Plan] = [()] * (batches * search.settings.hosts)
    search.played.plans = alone
    for _ in range(40):
        search._draw_plan(watched)  # type: ignore[arg-type]
    assert watched.limits == limits
