"""The contribution family, term by term."""

import math
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import esper
from esper.kasmina import SlotTable
from esper.leyline import POINTS, Op, Stage
from esper.simic.config.reward import INTERVENTION_COSTS, ContributionConfig, RewardConfig, RewardFamily
from esper.simic.rewards import attribution_discount, cull_shaping, holding_penalty, legitimacy_discount, make_reward
from esper.tolaria import Outcome, Situation
from tests.simic.lives import make_outcome, make_situation
from tests.worlds import tiny_task

CONFIG = ContributionConfig()


def with_seed(stage: Stage, **columns: Any) -> Situation:
    """A seed that has been measured, unless `columns` say otherwise."""
    table = SlotTable.empty(1, 2)
    table.stage[0, 0], table.alpha[0, 0], table.params[0, 0] = stage.value, 1.0, 0
    for name, value in {"measurements": 1, **columns}.items():
        getattr(table, name)[0, 0] = value
    return make_situation(1, 2, table=table)


def components(outcome: Outcome, **overrides: Any) -> dict[str, float]:
    config = RewardConfig(family=RewardFamily.CONTRIBUTION, contribution=ContributionConfig(**overrides))
    return {name: float(term) for name, term in make_reward(config)(outcome).components.items()}


def doing(op: Op, before: Situation, after: Situation | None = None, **overrides: Any) -> Outcome:
    return make_outcome(before, after, actions=torch.tensor([[0, 0, 0, op]]), **overrides)


def test_a_supported_contribution_is_paid_in_points() -> None:
    terms = components(make_outcome(with_seed(Stage.HOLDING, contribution=0.04, improvement=0.1)))
    assert terms["contribution"] == pytest.approx(4.0)
    assert terms["proxy"] == 0.0


@pytest.mark.parametrize("columns", [{"contribution": math.nan}, {"contribution": 0.0, "measurements": 0}])
def test_an_unmeasured_seed_is_credited_by_proxy_at_a_third(columns: dict[str, float]) -> None:
    before = with_seed(Stage.BLENDING, **columns)
    after = replace(before, signals=replace(before.signals))
    after.signals.score_history = before.signals.score_history + 0.06
    terms = components(make_outcome(before, after))
    assert terms["contribution"] == 0.0
    assert terms["proxy"] == pytest.approx(6.0 / 3)


def test_the_proxy_stands_in_until_a_seed_of_a_real_host_is_measured() -> None:
    reward = RewardConfig(family=RewardFamily.CONTRIBUTION)
    env = esper.make_env(tiny_task(), envs=1, episode_length=8, executor="loop", reward=reward)
    env.reset()
    paid = []
    for op in (Op.GERMINATE, *[Op.WAIT] * 6):
        outcome = (step := env.step(torch.tensor([[0, 0, 0, op]]))).info.outcome
        gain = POINTS * float(outcome.after.score - outcome.before.score)
        terms = {name: float(term) for name, term in step.info.payment.components.items()}
        assert terms["proxy"] == 0.0 or terms["proxy"] == pytest.approx(gain / 3, abs=1e-4)
        paid.append((int(outcome.after.table.measurements[0, 0]) > 0, terms["proxy"] != 0.0))
    assert (False, True) in paid  # credited by proxy while nothing was measured
    assert (True, True) not in paid  # and never again


@pytest.mark.parametrize(("contribution", "credited"), [(0.3, 5.0), (-0.3, -5.0), (0.04, 4.0)])
def test_no_seed_is_credited_or_charged_with_more_than_the_limit(contribution: float, credited: float) -> None:
    situation = with_seed(Stage.HOLDING, contribution=contribution, improvement=0.5)
    assert components(make_outcome(situation), contribution_limit=5.0)["contribution"] == pytest.approx(credited)


@pytest.mark.parametrize(("gain", "credited"), [(0.3, 5.0), (-0.3, -5.0)])
def test_the_proxy_and_the_bonus_keep_to_the_limit_too(gain: float, credited: float) -> None:
    before = with_seed(Stage.TRAINING, measurements=0)
    after = replace(before, signals=replace(before.signals, score_history=before.signals.score_history + gain))
    assert components(make_outcome(before, after), contribution_limit=5.0)["proxy"] == pytest.approx(credited / 3)
    kept = with_seed(Stage.HOLDING, contribution=0.3, improvement=0.5, epochs_in_stage=5)
    assert components(doing(Op.FOSSILIZE, kept), contribution_limit=5.0)["fossilize_bonus"] == pytest.approx(5.0)


def test_a_seed_that_made_itself_needed_is_charged() -> None:
    terms = components(make_outcome(with_seed(Stage.HOLDING, contribution=0.05, improvement=-0.02)))
    assert terms["contribution"] == pytest.approx(-0.5 * 5.0)


def test_a_rolled_back_epoch_credits_nothing() -> None:
    situation = with_seed(Stage.HOLDING, contribution=0.04, improvement=0.1, epochs_in_stage=5)
    terms = components(doing(Op.FOSSILIZE, situation, panicked=torch.tensor([True])))
    assert {name for name, value in terms.items() if value != 0} == {"intervention"}


@given(contribution=st.floats(0.01, 20), low=st.floats(-30, 30), more=st.floats(0, 30))
def test_the_attribution_discount_is_monotone_and_one_when_supported(
    contribution: float, low: float, more: float
) -> None:
    c, i = torch.tensor([contribution] * 3), torch.tensor([low, low + more, contribution])
    first, second, full = attribution_discount(c, i).tolist()
    assert 0 <= first <= second + 1e-6 <= 1 + 2e-6
    assert full == pytest.approx(1.0)


def test_without_support_there_is_no_credit() -> None:
    assert float(attribution_discount(torch.tensor(5.0), torch.tensor(-1.0))) == 0.0
    assert float(attribution_discount(torch.tensor(5.0), torch.tensor(2.5))) == pytest.approx(0.5)
    assert float(attribution_discount(torch.tensor(-5.0), torch.tensor(-1.0))) == 1.0


def test_the_attribution_discount_is_a_smoothstep_of_the_support() -> None:
    support = torch.tensor([0.0, 0.1, 0.25, 0.75, 0.9, 1.0])
    expected = [0.0, 0.028, 0.15625, 0.84375, 0.972, 1.0]  # 3x² - 2x³
    assert attribution_discount(torch.full((6,), 4.0), 4.0 * support).tolist() == pytest.approx(expected)


def test_legitimacy_rises_to_one() -> None:
    factors = legitimacy_discount(torch.arange(6), full_after=3).tolist()
    assert factors == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])
    assert legitimacy_discount(torch.arange(3), full_after=0).tolist() == [1.0, 1.0, 1.0]


def test_keeping_a_seed_at_once_earns_less_than_after_watching_it() -> None:
    def bonus(epochs: int) -> float:
        before = with_seed(Stage.HOLDING, contribution=0.03, improvement=0.1, epochs_in_stage=epochs)
        return components(doing(Op.FOSSILIZE, before, with_seed(Stage.FOSSILIZED)))["fossilize_bonus"]

    assert [bonus(epochs) for epochs in range(4)] == pytest.approx([1.0, 2.0, 3.0, 3.0])
    harmful = with_seed(Stage.HOLDING, contribution=-0.03, improvement=0.1, epochs_in_stage=5)
    assert components(doing(Op.FOSSILIZE, harmful))["fossilize_bonus"] == 0.0


def test_a_bonus_that_the_improvement_does_not_support_is_discounted() -> None:
    def bonus(improvement: float) -> float:
        before = with_seed(Stage.HOLDING, contribution=0.04, improvement=improvement, epochs_in_stage=5)
        return components(doing(Op.FOSSILIZE, before, with_seed(Stage.FOSSILIZED)))["fossilize_bonus"]

    assert [bonus(points / 100) for points in (-1, 0, 1, 2, 4, 8)] == pytest.approx([0, 0, 0.625, 2, 4, 4], abs=1e-5)


def test_indecision_is_charged_linearly_up_to_a_cap() -> None:
    charges = holding_penalty(torch.arange(1, 14), CONFIG).tolist()
    assert charges == [0, -1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -10, -10]
    gentle = replace(CONFIG, holding_start=3, holding_penalty=0.5, holding_step=0.25, holding_cap=1.0)
    assert holding_penalty(torch.arange(1, 8), gentle).tolist() == [0, 0, -0.5, -0.75, -1, -1, -1]


def test_indecision_is_charged_in_holding_alone() -> None:
    charged = {
        stage: components(make_outcome(with_seed(stage, epochs_in_stage=4)))["holding"]
        for stage in (Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)
    }
    assert charged == {Stage.BLENDING: 0.0, Stage.HOLDING: -3.0, Stage.FOSSILIZED: 0.0}


@given(points=st.floats(allow_nan=True, allow_infinity=True))
def test_cull_shaping_is_bounded(points: float) -> None:
    value = float(cull_shaping(torch.tensor(points, dtype=torch.float64), CONFIG))
    assert abs(value) <= CONFIG.cull_bound


def test_culling_pays_for_harm_and_charges_for_help() -> None:
    after = make_situation(1, 2)
    harm = components(doing(Op.CULL, with_seed(Stage.HOLDING, contribution=-0.03), after))
    help_ = components(doing(Op.CULL, with_seed(Stage.HOLDING, contribution=0.03), after))
    assert (harm["cull_shaping"], help_["cull_shaping"]) == pytest.approx((0.3, -0.3))
    assert components(doing(Op.WAIT, with_seed(Stage.HOLDING, contribution=0.03), after))["cull_shaping"] == 0.0


def test_costs_of_ops_come_from_the_config_alone() -> None:
    assert ContributionConfig().intervention_costs == INTERVENTION_COSTS
    assert INTERVENTION_COSTS[Op.WAIT] == 0.0
    assert set(INTERVENTION_COSTS) == set(Op)
    situation = make_situation(1, 2)
    assert components(doing(Op.GERMINATE, situation))["intervention"] == -INTERVENTION_COSTS[Op.GERMINATE]
    assert components(doing(Op.GERMINATE, situation), germinate_cost=7.0)["intervention"] == -7.0


def test_a_ratio_above_its_limit_is_charged_up_to_a_cap() -> None:
    def penalty(contribution: float, improvement: float, **overrides: Any) -> float:
        situation = with_seed(Stage.HOLDING, contribution=contribution, improvement=improvement)
        return components(make_outcome(situation), **overrides)["ratio_penalty"]

    assert penalty(0.05, 0.01) == pytest.approx(-0.5 * (5 - 3), rel=1e-5)
    assert penalty(0.02, 0.01) == 0.0
    assert penalty(0.5, 0.002) == -5.0


def test_rent_is_charged_every_step_and_the_end_pays_the_objective() -> None:
    situation = with_seed(Stage.FOSSILIZED, params=500, contribution=0.0, improvement=0.0)
    outcome = make_outcome(
        situation,
        truncated=torch.tensor([True]),
        final_score=torch.tensor([0.6]),
        final_params=torch.tensor([500]),
    )
    terms = components(outcome)
    assert terms["rent"] == pytest.approx(-100 * 0.03 * 0.5)
    assert terms["end"] == pytest.approx(0.1 * 100 * (0.6 - 0.015))
    assert components(make_outcome(situation))["end"] == 0.0
    weighted = components(outcome, rent_weight=2.5, end_weight=0.5)
    assert weighted["rent"] == pytest.approx(2.5 * terms["rent"])
    assert weighted["end"] == pytest.approx(5 * terms["end"])


def telling_outcomes() -> list[Outcome]:
    """Steps that between them are paid or charged for everything."""
    last: dict[str, Any] = {"truncated": torch.tensor([True]), "final_score": torch.tensor([0.6])}
    unmeasured = with_seed(Stage.TRAINING, measurements=0)
    better = replace(unmeasured.signals, score_history=unmeasured.signals.score_history + 0.06)
    return [
        make_outcome(unmeasured, replace(unmeasured, signals=better)),
        make_outcome(with_seed(Stage.HOLDING, contribution=0.3, improvement=0.5, params=100)),
        make_outcome(with_seed(Stage.HOLDING, contribution=0.05, improvement=-0.02)),
        make_outcome(with_seed(Stage.HOLDING, contribution=0.05, improvement=0.01)),
        make_outcome(with_seed(Stage.HOLDING, contribution=0.5, improvement=0.002)),
        make_outcome(with_seed(Stage.HOLDING, epochs_in_stage=4)),
        make_outcome(with_seed(Stage.HOLDING, epochs_in_stage=30)),
        doing(Op.GERMINATE, make_situation(1, 2)),
        doing(Op.FOSSILIZE, with_seed(Stage.HOLDING, contribution=0.03, improvement=0.1)),
        doing(Op.CULL, with_seed(Stage.HOLDING, contribution=-0.03)),
        doing(Op.CULL, with_seed(Stage.HOLDING, contribution=-0.5)),
        make_outcome(make_situation(1, 2), **last),
    ]


@pytest.mark.parametrize("name", [spec.name for spec in fields(ContributionConfig) if spec.name != "proxy_weight"])
def test_every_number_of_the_config_changes_what_is_paid(name: str) -> None:
    changed = {name: getattr(CONFIG, name) + 1}
    outcomes = telling_outcomes()
    assert [components(outcome) for outcome in outcomes] != [components(outcome, **changed) for outcome in outcomes]
