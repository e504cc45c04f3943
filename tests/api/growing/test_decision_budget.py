"""Budgets: never exceeded, whatever a controller would like."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import esper
from esper.api.growing.decision import Limits
from esper.kasmina import Catalogue, EpochEvidence, Family, SiteShape, SlotTable, act, begin_epoch, end_epoch
from esper.kasmina.table import MEASUREMENTS_BEFORE_CULL
from esper.leyline import DEFAULT_PRICE, InputError, Op, Stage
from esper.tamiyo import Random
from esper.tolaria import SignalTable, Situation
from tests.api.growing.builders import grow, make_grower

SITES = (SiteShape(Family.FEATURES, 16, (4,)), SiteShape(Family.CONV1D, 12, (9,)), SiteShape(Family.CONV2D, 8, (5, 5)))
EPISODES = 10_000


def random_evidence(table: SlotTable, dice: torch.Generator) -> EpochEvidence:
    hosts, shape = table.shape[0], table.shape
    return EpochEvidence(
        torch.rand(hosts, generator=dice),
        torch.rand(hosts, generator=dice) > 0.02,
        torch.rand(shape, generator=dice) - 0.02,
        torch.rand(shape, generator=dice) - 0.5,
        torch.rand(shape, generator=dice) - 0.3,
    )


@pytest.mark.parametrize("limits", [Limits(1500, 10**9), Limits(10**9, 90_000), Limits(2500, 60_000), Limits(0, 0)])
def test_no_budget_is_exceeded_in_ten_thousand_random_episodes(limits: Limits) -> None:
    catalogue, dice, controller = Catalogue.of(SITES), torch.Generator().manual_seed(0), Random()
    controller.reset(EPISODES, 0)
    table, signals = SlotTable.empty(EPISODES, len(SITES)), SignalTable.empty(EPISODES)
    budget, price = torch.full((EPISODES,), limits.params), torch.full((EPISODES,), DEFAULT_PRICE)
    germinated = 0
    for _ in range(25):
        masks = limits.masks(table, catalogue)
        situation = Situation(table, signals, masks, catalogue, (), 1000, price, budget, 25)
        actions = controller.decide(situation)
        assert masks.allow(actions).all()
        germinated += int((actions[:, 3] == Op.GERMINATE).sum())
        table, _ = act(table, actions, catalogue, budget, torch.zeros(EPISODES))
        assert (table.added_params <= limits.params).all()
        assert (catalogue.planted_flops(table).sum(1) <= limits.flops).all()
        table, _ = begin_epoch(table)
        table, _ = end_epoch(table, random_evidence(table, dice))
    assert (germinated > EPISODES) == (limits.params > 0)


@pytest.mark.filterwarnings("ignore:no seed fits into the budget")
@settings(max_examples=15)
@given(params=st.integers(0, 600), flops=st.integers(0, 2000), ratio=st.floats(0, 3), seed=st.integers(0, 99))
def test_a_network_itself_stays_within_its_budget(params: int, flops: int, ratio: float, seed: int) -> None:
    budget = esper.Budget(params=params, flops=flops, ratio=ratio)
    grower = make_grower(controller="random", budget=budget, seed=seed)
    size = sum(parameter.numel() for parameter in grower.grafted.host.parameters())
    for decision in grow(grower, 8):
        added = sum(parameter.numel() for parameter in grower.grafted.slots.parameters())
        assert added <= params
        assert added <= ratio * size
        assert decision.budget_used is not None
        assert decision.budget_used <= 1


def test_each_limit_binds_alone() -> None:
    price = int(make_grower().grafted.catalogue.params[0, 3])
    flops = int(make_grower().grafted.catalogue.flops[0, 3])
    size = sum(parameter.numel() for parameter in make_grower().grafted.host.parameters())
    share = price / size
    for too_small in (
        esper.Budget(params=price - 1),
        esper.Budget(flops=flops - 1),
        esper.Budget(ratio=share - 0.01),
    ):
        assert not make_grower(budget=too_small).situation.masks.blueprint[0, 0, 3]
    for enough in (esper.Budget(params=price), esper.Budget(flops=flops), esper.Budget(ratio=share + 0.01)):
        assert make_grower(budget=enough).situation.masks.blueprint[0, 0, 3]


def test_culled_seeds_give_their_share_back() -> None:
    catalogue, table = Catalogue.of(SITES), SlotTable.empty(1, 3)
    table.stage[0, 0], table.blueprint[0, 0], table.params[0, 0] = Stage.HOLDING.value, 4, catalogue.params[0, 3]
    table.measurements[0, 0] = MEASUREMENTS_BEFORE_CULL
    limits = Limits(int(catalogue.params[0, 3]), 10**9)
    assert not limits.masks(table, catalogue).op[0, Op.GERMINATE]
    table, _ = act(table, torch.tensor([[0, 0, 0, Op.CULL]]), catalogue, torch.tensor([limits.params]), torch.zeros(1))
    assert limits.masks(table, catalogue).op[0, Op.GERMINATE]
    assert catalogue.planted_flops(table).sum(1).item() == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"params": -1}, "Budget.params must be finite and 0 or more; got -1"),
        ({"params": 1.5}, r"Budget.params must be int \| None"),
        ({"flops": "many"}, r"Budget.flops must be int \| None"),
        ({"ratio": float("nan")}, "Budget.ratio must be finite and 0 or more"),
        ({"ratio": True}, "Budget.ratio must be"),
        ({}, "limits nothing; give params, flops or ratio"),
    ],
)
def test_impossible_budgets_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        esper.Budget(**settings)


@pytest.mark.parametrize("given", [1000, 0.2, {"params": 1000}])
def test_a_budget_that_is_none_is_refused_with_what_to_write(given: Any) -> None:
    with pytest.raises(InputError, match=r"as in budget=esper\.Budget\(params=1000\); got"):
        make_grower(budget=given)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (esper.Budget(params=0), "seeds add at least 16 parameters, and the budget is 0 parameters"),
        (esper.Budget(params=15), "seeds add at least 16 parameters, and the budget is 15 parameters"),
        (esper.Budget(ratio=0.05), "seeds add at least 16 parameters, and the budget is 7 parameters"),
        (esper.Budget(flops=7), "seeds add at least 8 operations, and the budget is 7 operations"),
        (esper.Budget(params=90, flops=7), "16 parameters and 8 operations, and the budget is 90 parameters and 7 op"),
    ],
)
def test_a_budget_into_which_nothing_fits_is_told_at_once_and_once(budget: esper.Budget, message: str) -> None:
    with pytest.warns(UserWarning, match=f"so nothing will grow: .*{message}"):
        grower = make_grower(controller="heuristic", budget=budget)
    assert {decision.op for decision in grow(grower, 3)} == {Op.WAIT}  # a second warning would be an error here
