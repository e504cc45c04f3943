"""The default reward: it sums to what the episode brought, in quality minus rent."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from esper.kasmina import SlotTable
from esper.leyline import POINTS, Stage, objective, rent
from esper.simic.config.reward import RewardConfig, RewardFamily, SparseConfig
from esper.simic.rewards import make_reward, rents_now
from esper.tolaria import Outcome
from tests.simic.lives import HOST_PARAMS, last_steps, make_outcome, make_situation, random_life


def paid(outcomes: list[Outcome], config: RewardConfig) -> Tensor:
    """`[N]`: all that each host was paid until its end."""
    reward = make_reward(config)
    totals = torch.stack([reward(outcome).total for outcome in outcomes])
    alive = torch.arange(len(outcomes))[:, None] <= last_steps(outcomes)
    return (totals * alive).sum(0)


def final(outcomes: list[Outcome], host: int) -> Outcome:
    return outcomes[int(last_steps(outcomes)[host])]


@settings(max_examples=200)
@given(
    seed=st.integers(0, 10**6),
    length=st.integers(1, 14),
    panic_rate=st.sampled_from([0.0, 0.3]),
    flop_price=st.sampled_from([0.0, 0.2]),
)
def test_an_episode_is_paid_the_change_of_the_objective(
    seed: int, length: int, panic_rate: float, flop_price: float
) -> None:
    life: dict[str, Any] = {"length": length, "panic_rate": panic_rate, "flop_price": flop_price, "host_flops": 5000}
    outcomes = random_life(seed, hosts=3, **life)
    sums = paid(outcomes, RewardConfig())
    for host in range(3):
        end, price = final(outcomes, host), float(outcomes[0].before.price[host])
        params, flops = float(end.final_params[host]), float(end.final_flops[host])
        j_end = objective(float(end.final_score[host]), params, HOST_PARAMS, price, flops, 5000, flop_price)
        j_start = float(outcomes[0].before.score[host])
        assert float(sums[host]) == pytest.approx(j_end - j_start, abs=1e-6)


def grown(alpha: float, params: int, **overrides: object) -> SlotTable:
    table = SlotTable.empty(1, 2)
    table.stage[0, 0], table.alpha[0, 0], table.params[0, 0] = Stage.BLENDING.value, alpha, params
    for name, value in overrides.items():
        getattr(table, name)[0, 0] = value
    return table


def test_seeds_pay_rent_at_their_alpha_and_quality_is_paid_as_it_changes() -> None:
    before = make_situation(1, 2, price=torch.tensor([0.1]))
    after = replace(before, table=grown(0.5, 400), signals=replace(before.signals))
    after.signals.score_history = torch.tensor([[0.0, 0.0, 0.0, 0.1, 0.35]])
    terms = make_reward()(make_outcome(before, after)).components
    assert float(terms["quality"]) == pytest.approx(0.25)
    assert float(terms["rent"]) == pytest.approx(-0.1 * 0.5 * 400 / HOST_PARAMS)
    doubled = replace(after, table=grown(0.5, 800))
    assert float(rents_now(doubled)["rent"]) == pytest.approx(2 * float(rents_now(after)["rent"]))
    assert float(rents_now(replace(after, price=torch.tensor([0.0])))["rent"]) == 0.0


def test_flops_pay_a_rent_of_their_own_at_their_alpha_if_they_have_a_price() -> None:
    free = make_situation(1, 2, table=grown(0.5, 400, blueprint=4), host_flops=2000)
    flops = int(free.catalogue.flops[0, 3])
    before = make_situation(1, 2, host_flops=2000, flop_price=0.1)
    after = replace(free, flop_price=0.1)
    terms = make_reward()(make_outcome(before, after)).components
    assert float(terms["flop_rent"]) == pytest.approx(-0.1 * 0.5 * flops / 2000)
    assert torch.equal(terms["rent"], make_reward()(make_outcome(before, free)).components["rent"])
    assert float(rents_now(free)["flop_rent"]) == 0.0
    twice = replace(after, catalogue=replace(after.catalogue, flops=2 * after.catalogue.flops))
    assert float(rents_now(twice)["flop_rent"]) == pytest.approx(2 * float(rents_now(after)["flop_rent"]))
    assert torch.equal(rents_now(twice)["rent"], rents_now(after)["rent"])


def test_the_last_step_settles_to_the_committed_network() -> None:
    situation = make_situation(1, 2, table=grown(1.0, 400), price=torch.tensor([0.1]))
    outcome = make_outcome(
        situation,
        truncated=torch.tensor([True]),
        final_score=torch.tensor([0.05]),
        final_params=torch.tensor([100]),
    )
    terms = make_reward()(outcome).components
    assert float(terms["quality"]) == pytest.approx(0.05 - 0.1)
    assert float(terms["rent"]) == pytest.approx(0.1 * (400 - 100) / HOST_PARAMS)


def test_only_quality_and_rent_are_paid_by_default() -> None:
    for outcome in random_life(1):
        components = make_reward()(outcome).components
        unpaid = ("flop_rent", "shaping", "governor", "indecision", "gaming")
        assert all((components[name] == 0).all() for name in unpaid)


def test_scale_and_governor_penalty_are_components_of_their_own() -> None:
    situation = make_situation(2)
    outcome = make_outcome(situation, panicked=torch.tensor([True, False]))
    breakdown = make_reward(RewardConfig(governor_penalty=0.5, scale=4.0))(outcome)
    assert breakdown.components["governor"].tolist() == [-2.0, 0.0]
    assert breakdown.total.tolist() == [-2.0, 0.0]


def test_every_epoch_of_every_seed_in_holding_is_charged() -> None:
    situation = make_situation(3, 2)
    situation.table.stage[:] = torch.tensor([[Stage.HOLDING, Stage.HOLDING], [Stage.HOLDING, Stage.BLENDING], [0, 0]])
    reward = make_reward(RewardConfig(holding_cost=0.01, scale=10.0))
    assert reward(make_outcome(situation)).components["indecision"].tolist() == pytest.approx([-0.2, -0.1, 0.0])
    taken_back = make_outcome(situation, panicked=torch.tensor([True, False, False]))
    assert reward(taken_back).components["indecision"].tolist() == pytest.approx([0.0, -0.1, 0.0])


@pytest.mark.parametrize(("final_score", "expected"), [(0.78, 1.95), (7.0, 2.5), (-7.0, -2.5)])
def test_the_sparse_reward_keeps_its_scale_and_waits_for_the_end(final_score: float, expected: float) -> None:
    reward = make_reward(RewardConfig(family=RewardFamily.SPARSE, sparse=SparseConfig(2.5)))
    situation = make_situation(1)
    score = torch.tensor([final_score])
    end = make_outcome(situation, truncated=torch.tensor([True]), final_score=score)
    assert float(reward(end).total) == pytest.approx(expected)
    assert float(reward(make_outcome(situation, final_score=score)).total) == 0.0


def test_numbers_and_tensors_go_through_the_same_objective() -> None:
    scores, params, price = torch.tensor([0.5, 0.9]), torch.tensor([10.0, 500.0]), torch.tensor([0.1, 0.02])
    together = objective(scores, params, HOST_PARAMS, price).tolist()
    rows = zip(scores.tolist(), params.tolist(), price.tolist(), strict=True)
    assert together == pytest.approx([objective(s, p, HOST_PARAMS, c) for s, p, c in rows])
    assert rent(50, 100, 0.1) * POINTS == pytest.approx(5.0)
    assert rent(50, 100, 0.1, 30, 600, 0.2) * POINTS == pytest.approx(5.0 + 1.0)
    assert rent(50, 100, 0.1, 30, 600) == rent(50, 100, 0.1)
