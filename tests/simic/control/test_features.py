"""Observations: laid out as documented, finite whatever happens, and true to a scripted life."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from esper.kasmina import SlotTable, num_blueprints
from esper.leyline import HEAD_NAMES, NUM_BLENDS, NUM_OPS, Op, SlotConfig, Stage
from esper.simic.agent import PPOAgent
from esper.simic.config import LearnerConfig
from esper.simic.control import features as features_module
from esper.simic.control.features import (
    compute_action_mask,
    describe_observation,
    observation_layout,
    observation_width,
    signals_to_features,
)
from esper.tolaria import Situation
from tests.simic.lives import HOST_PARAMS, make_situation, random_life


def named(situation: Situation, host: int = 0) -> dict[str, float]:
    return describe_observation(signals_to_features(situation)[host], situation.table.shape[1])


def test_an_agent_of_that_width_takes_the_observation() -> None:
    situation = make_situation(4, 3)
    learner = LearnerConfig(lstm_hidden_dim=8, device="cpu")
    agent = PPOAgent(learner, state_dim=observation_width(3), num_envs=4, max_steps=2)
    masks = {name: getattr(situation.masks, name) for name in HEAD_NAMES}
    assert agent.act(signals_to_features(situation), masks, agent.initial_hidden(4)).actions.shape == (4, 4)


def permuted(table: SlotTable, order: list[int]) -> SlotTable:
    return SlotTable(**{name: column[:, order] for name, column in table.columns().items()})


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), order=st.permutations(range(3)))
def test_moving_slots_moves_exactly_their_blocks(seed: int, order: list[int]) -> None:
    situation = random_life(seed, hosts=2, slots=3, length=12)[-1].after
    catalogue = replace(
        situation.catalogue, fits=situation.catalogue.fits[order], params=situation.catalogue.params[order]
    )
    moved = replace(situation, table=permuted(situation.table, order), catalogue=catalogue)
    layout = observation_layout(3)
    ids = SlotConfig.of_size(3).slot_ids
    place = {placed.name: index for index, placed in enumerate(layout)}
    source = [
        index
        if placed.slot_id is None
        else place[placed.name.replace(placed.slot_id, ids[order[ids.index(placed.slot_id)]])]
        for index, placed in enumerate(layout)
    ]
    assert torch.equal(signals_to_features(moved), signals_to_features(situation)[:, source])


def test_a_scripted_situation_reads_as_it_is() -> None:
    situation = make_situation(2, 2, price=torch.tensor([0.01, 0.1]), budget=torch.tensor([400, 0]))
    situation.signals.epoch[:] = 5
    situation.signals.val_loss[:] = 1.5
    situation.signals.score_delta[:] = 0.02
    situation.signals.score_history[:] = torch.tensor([0.10, 0.20, 0.30, 0.35, 0.37])
    table = situation.table
    table.stage[0, 1], table.alpha[0, 1], table.blueprint[0, 1] = Stage.BLENDING.value, 0.5, 2
    table.contribution[0, 1], table.improvement[0, 1], table.seed_grad_norm[0, 1] = 0.04, 0.1, 2.0
    table.params[0, 1], table.epochs_in_stage[0, 1] = 100, 2
    seen = named(situation)
    expected = {
        "host.epoch": 0.2,
        "host.global_step": 0.2,
        "host.val_loss": 0.15,
        "host.train_loss": 1.0,  # not measured
        "host.val_accuracy": 0.37,
        "host.accuracy_delta": 0.04,
        "host.accuracy_history_4": 0.10,
        "host.accuracy_history_0": 0.37,
        "host.loss_history_0": 1.0,
        "host.host_learning_phase": 0.2,
        "r0c1.slot.active": 1.0,
        "r0c1.slot.stage": 3 / 7,
        "r0c1.slot.counterfactual": 0.4,
        "r0c1.slot.blueprint_1": 0.0,
        "r0c1.slot.blueprint_2": 1.0,
        "r0c1.telemetry.gradient_norm": 0.2,
        "r0c1.telemetry.accuracy": 0.37,
        "r0c1.telemetry.accuracy_delta": 0.2,
        "r0c1.telemetry.epochs_in_stage": 0.4,
        "r0c1.telemetry.episode_progress": 0.2,
        "r0c0.telemetry.episode_progress": 0.0,  # no seed, no telemetry
        "economy.params_added": 0.1,
        "economy.budget_left": 0.75,
        "economy.price": -1.0,
        "economy.rent": 0.01,
        "economy.seed_lives_left": 20 / 6,
        "economy.score_gain": 0.4,
        "economy.score_gain_3": 1.0,  # 17 points, cut at ten
        "r0c1.economy.rent": 0.01,
        "r0c1.economy.net_contribution": 0.39,
    }
    assert {name: seen[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    other = named(situation, host=1)
    assert other["economy.price"] == pytest.approx(1.0)
    assert other["economy.budget_left"] == 0.0
    assert named(make_situation())["economy.budget_left"] == 1.0


def test_offers_are_the_rent_of_each_blueprint_and_the_end_of_the_scale_where_none_fits() -> None:
    situation = make_situation(1, 2)
    situation.catalogue.fits[1, 2] = False
    seen = named(situation)
    for slot in range(2):
        for kind in range(num_blueprints()):
            points = 100 * 0.03 * int(situation.catalogue.params[slot, kind]) / HOST_PARAMS
            fits = bool(situation.catalogue.fits[slot, kind])
            assert seen[f"r0c{slot}.economy.offer_{kind + 1}"] == pytest.approx(points / 10 if fits else 5.0)


@pytest.mark.parametrize(
    ("norm", "health", "vanishing", "exploding", "known"),
    [
        (1.0, 1, 0, 0, 1),
        (10.0, 0.5, 0, 0, 1),
        (1e-8, 0, 1, 0, 1),
        (0.0, 0, 1, 0, 1),
        (200.0, 0, 0, 1, 1),
        (math.inf, 0, 0, 1, 1),
        (math.nan, 0, 0, 0, 0),
    ],
)
def test_gradient_columns(norm: float, health: float, vanishing: int, exploding: int, known: int) -> None:
    situation = make_situation(1, 1)
    situation.table.stage[0, 0] = Stage.TRAINING.value
    situation.table.seed_grad_norm[0, 0] = norm
    seen = named(situation)
    assert seen["r0c0.telemetry.gradient_health"] == pytest.approx(health, abs=1e-5)
    assert seen["r0c0.telemetry.has_vanishing"] == vanishing
    assert seen["r0c0.telemetry.has_exploding"] == exploding
    assert seen["r0c0.availability.gradient"] == known
    assert exploding <= seen["r0c0.telemetry.gradient_norm"] <= 1.0


def test_a_measured_zero_differs_from_not_measured() -> None:
    situation = make_situation(2, 1)
    situation.table.stage[:] = Stage.BLENDING.value
    situation.table.contribution[0], situation.table.improvement[0] = 0.0, 0.0
    measured, unknown = named(situation, 0), named(situation, 1)
    assert measured["r0c0.slot.counterfactual"] == unknown["r0c0.slot.counterfactual"] == 0.0
    for name in ("contribution", "improvement"):
        assert (measured[f"r0c0.availability.{name}"], unknown[f"r0c0.availability.{name}"]) == (1.0, 0.0)


def within_bounds(obs: Tensor, slots: int) -> bool:
    columns = [placed.column for placed in observation_layout(slots)]
    low, high = (torch.tensor([getattr(column, end) for column in columns]) for end in ("low", "high"))
    return bool(obs.isfinite().all() and (obs >= low - 1e-6).all() and (obs <= high + 1e-6).all())


@settings(max_examples=200)
@given(seed=st.integers(0, 10**6), value=st.floats(width=32))
def test_every_feature_is_finite_and_within_its_bounds_whatever_was_measured(seed: int, value: float) -> None:
    situation = make_situation(2, 2)
    generator = torch.Generator().manual_seed(seed)
    tables: tuple[Any, Any] = (situation.table, situation.signals)
    columns = [getattr(table, name) for table in tables for name in type(table).__dataclass_fields__]
    for column in [*columns, situation.price]:
        if column.is_floating_point():
            column[torch.rand(column.shape, generator=generator) < 0.5] = value
    situation.table.stage[:] = torch.randint(8, (2, 2), generator=generator)
    situation.table.params[:] = torch.randint(10**9, (2, 2), generator=generator)
    assert within_bounds(signals_to_features(situation), 2)


def test_features_stay_within_bounds_through_whole_lives() -> None:
    for outcome in random_life(0, hosts=32, slots=3):
        assert within_bounds(signals_to_features(outcome.after), 3)


def test_the_flat_mask_allows_exactly_what_the_masks_allow() -> None:
    for outcome in random_life(3, hosts=6, slots=2, length=12, budget=torch.full((6,), 150)):
        masks = outcome.after.masks
        flat = compute_action_mask(masks)
        sizes = (2, num_blueprints(), NUM_BLENDS, NUM_OPS)
        for index in range(flat.shape[1]):
            action = torch.stack(torch.unravel_index(torch.tensor(index), sizes)).expand(6, -1)
            assert torch.equal(flat[:, index], masks.allow(action))
    assert flat[:, Op.WAIT].all()


def test_everything_promised_is_exported() -> None:
    promised = {"safe", "obs_to_base_features", "obs_to_base_features_tensor", "compute_action_mask", "TaskConfig"}
    assert promised | {"normalize_observation", "signals_to_features"} <= set(features_module.__all__)


def test_rents_and_offers_are_shown_with_what_flops_cost() -> None:
    free = make_situation(2, 2, host_flops=4000)
    free.table.blueprint[0, 1], free.table.params[0, 1], free.table.stage[0, 1] = 4, 100, Stage.HOLDING.value
    priced = replace(free, flop_price=0.05)
    before, seen = named(free), named(priced)
    flops = 10 * 0.05 * free.catalogue.flops / 4000
    for name in ("economy.rent", "r0c1.economy.rent"):
        assert seen[name] - before[name] == pytest.approx(float(flops[1, 3]), abs=1e-6)
    for kind in (1, 4):
        name = f"r0c0.economy.offer_{kind}"
        assert seen[name] - before[name] == pytest.approx(float(flops[0, kind - 1]), abs=1e-6)
    changed = {name for name in seen if seen[name] != before[name]}
    assert changed <= {name for name in seen if "rent" in name or "offer" in name or "net_contribution" in name}
    assert torch.equal(signals_to_features(replace(free, host_flops=1)), signals_to_features(free))


def test_merit_shows_its_best_kind_and_the_best_slot() -> None:
    merit = torch.full((2, 3, num_blueprints()), math.nan)
    merit[0, 0, 1:3] = torch.tensor([0.5, 10.0])
    merit[0, 2, 0] = 2.0
    situation = make_situation(2, 3, merit=merit)
    row, other = named(situation), named(situation, 1)
    assert [row[f"r0c{slot}.economy.merit"] for slot in range(3)] == pytest.approx([0.5, 0.0, math.log10(2) / 2])
    assert [row[f"r0c{slot}.economy.merit_lead"] for slot in range(3)] == pytest.approx([1.0, 0.0, 0.2])
    assert [row[f"r0c{slot}.availability.merit"] for slot in range(3)] == [1.0, 0.0, 1.0]
    for name, value in other.items():
        assert "merit" not in name or value == 0.0, name


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, 1e30, 1e-30])
def test_any_merit_gives_finite_features_within_their_bounds(value: float) -> None:
    merit = torch.full((1, 2, num_blueprints()), value)
    merit[0, 1, 0] = 1.0
    row = named(make_situation(1, 2, merit=merit))
    assert all(math.isfinite(number) for number in row.values())
    assert abs(row["r0c0.economy.merit"]) <= 2.0
    assert 0.0 <= row["r0c0.economy.merit_lead"] <= 1.0
    assert named(make_situation(1, 2)) == named(make_situation(1, 2, merit=torch.full_like(merit, math.nan)))
