"""Observations: laid out as documented, finite whatever happens, and true to a scripted life."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from esper.kasmina import SlotTable, catalogue_names, num_blueprints
from esper.leyline import HEAD_NAMES, NUM_BLENDS, NUM_OPS, POINTS, Op, SlotConfig, Stage, rent
from esper.simic.agent import PPOAgent
from esper.simic.config import LearnerConfig
from esper.simic.control import features as features_module
from esper.simic.control.features import (
    TaskConfig,
    compute_action_mask,
    describe_observation,
    normalize_observation,
    obs_to_base_features,
    obs_to_base_features_tensor,
    observation_layout,
    observation_width,
    safe,
    signals_to_features,
)
from esper.tasks import find_task
from esper.tolaria import Population, Situation
from tests.catalogues import one_more_kind
from tests.simic.lives import HOST_PARAMS, make_situation, random_life
from tests.worlds import tiny_task

SAMPLE: dict[str, Any] = {
    "epoch": 10,
    "global_step": 500,
    "train_loss": 1.5,
    "val_loss": 1.6,
    "loss_delta": -0.1,
    "train_accuracy": 45.0,
    "val_accuracy": 43.0,
    "accuracy_delta": 2.0,
    "plateau_epochs": 3,
    "best_val_accuracy": 45.0,
    "best_val_loss": 1.4,
    "loss_history_5": (2.0, 1.9, 1.8, 1.7, 1.6),
    "accuracy_history_5": (35.0, 38.0, 40.0, 41.0, 43.0),
    "has_active_seed": True,
    "seed_stage": 3,
    "seed_epochs_in_stage": 5,
    "seed_alpha": 0.5,
    "seed_improvement": 0.02,
    "available_slots": 0,
    "seed_counterfactual": 0.01,
    "host_grad_norm": 1.2,
    "host_learning_phase": 0.4,
    "seed_blueprint_id": 2,
}
any_float = st.floats(allow_nan=True, allow_infinity=True)
NUMBERS = {name: any_float for name, value in SAMPLE.items() if isinstance(value, float | int)}
OBSERVATIONS = st.fixed_dictionaries(
    NUMBERS
    | {
        "seed_blueprint_id": st.integers(-3, 12),
        "loss_history_5": st.lists(any_float, max_size=8),
        "accuracy_history_5": st.lists(any_float, max_size=8),
    }
)


def named(situation: Situation, host: int = 0) -> dict[str, float]:
    return describe_observation(signals_to_features(situation)[host], situation.table.shape[1])


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
def test_the_width_is_that_of_the_tensor(slots: int) -> None:
    config = SlotConfig.of_size(slots)
    obs = signals_to_features(make_situation(4, slots))
    assert obs.shape == (4, observation_width(config))
    per_slot = (4 + num_blueprints()) + 10 + 4 + (4 + num_blueprints())
    assert observation_width(config) == observation_width(slots) == 23 + 7 + slots * per_slot
    assert obs.dtype == torch.float32


def test_three_slots_begin_with_the_columns_that_were_agreed() -> None:
    blocks = [placed.block for placed in observation_layout(3)]
    agreed = ["host"] * 23 + ["slot"] * 3 * (4 + num_blueprints()) + ["telemetry"] * 30
    assert blocks[: len(agreed)] == agreed
    assert not {"host", "slot", "telemetry"} & set(blocks[len(agreed) :])


def test_column_names_are_unique() -> None:
    names = [placed.name for placed in observation_layout(3)]
    assert len(set(names)) == len(names)
    assert {"host.epoch", "r0c1.telemetry.alpha", "economy.price", "r0c2.economy.offer_5"} <= set(names)


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


def test_the_sample_observation_gives_the_agreed_values() -> None:
    features = obs_to_base_features_tensor(SAMPLE)
    expected = {0: 0.05, 1: 0.025, 2: 0.15, 4: -0.02, 6: 0.43, 7: 0.04, 8: 0.15, 11: 0.2, 20: 0.43, 21: 1.0}
    expected |= {22: 3 / 7, 23: 0.1, 24: 0.5, 25: 0.002, 26: 0.0, 27: 0.001, 28: 0.12, 29: 0.4, 30: 0.0, 31: 1.0}
    assert features.shape == (35,)
    assert features.dtype == torch.float32
    assert {index: float(features[index]) for index in expected} == pytest.approx(expected)


@settings(max_examples=200)
@given(obs=OBSERVATIONS)
def test_both_forms_of_the_dictionary_features_agree_and_are_bounded(obs: dict[str, Any]) -> None:
    plain = obs_to_base_features(obs)
    tensor = obs_to_base_features_tensor(obs)
    assert len(plain) == 35
    assert tensor.tolist() == pytest.approx(plain, abs=1e-6)
    bounds = torch.ones(35)
    bounds[1], bounds[26] = 4.0, 64.0
    assert (tensor.abs() <= bounds).all()


def test_a_given_tensor_is_filled_anew() -> None:
    out = torch.full((35,), 7.0)
    assert obs_to_base_features_tensor(SAMPLE, out=out) is out
    obs_to_base_features_tensor(SAMPLE | {"seed_blueprint_id": 4}, out=out)
    assert out[30:].tolist() == [0, 0, 0, 1, 0]
    obs_to_base_features_tensor(SAMPLE | {"seed_blueprint_id": 6, "num_blueprints": 9}, out=out)
    assert out[30:].tolist() == [0] * 5


def test_short_histories_are_padded_in_front_and_long_ones_cut() -> None:
    features = obs_to_base_features(SAMPLE | {"accuracy_history_5": [50.0], "loss_history_5": [9.0, 1, 1, 1, 1, 2.0]})
    assert features[16:21] == [0, 0, 0, 0, 0.5]
    assert features[11:16] == [0.1, 0.1, 0.1, 0.1, 0.2]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, 3.0), (math.nan, 3.0), (math.inf, 3.0), (-math.inf, 3.0), (99.0, 10.0), (-99.0, -10.0), (1.5, 1.5)],
)
def test_safe(value: float | None, expected: float) -> None:
    assert safe(value, default=3.0, max_val=10.0) == expected


def test_the_host_columns_of_a_table_are_those_of_its_dictionary() -> None:
    situation = make_situation(1, 1, episode_length=200)
    signals = situation.signals
    names = {"train_loss": "train_loss", "val_loss": "val_loss", "loss_delta": "loss_delta"}
    names |= {"best_val_loss": "best_val_loss", "plateau_epochs": "plateau_epochs", "epoch": "epoch"}
    shares = {"train_score": "train_accuracy", "score_delta": "accuracy_delta", "best_val_score": "best_val_accuracy"}
    for field, key in names.items():
        getattr(signals, field)[:] = SAMPLE[key]
    for field, key in shares.items():
        getattr(signals, field)[:] = SAMPLE[key] / 100
    signals.loss_history[:] = torch.tensor(SAMPLE["loss_history_5"])
    signals.score_history[:] = torch.tensor(SAMPLE["accuracy_history_5"]) / 100
    ours, twin = signals_to_features(situation)[0, :21].tolist(), obs_to_base_features(SAMPLE)[:21]
    assert [ours[0], *ours[2:]] == pytest.approx([twin[0], *twin[2:]])


@pytest.mark.parametrize("name", ["mnist1d", "digits"])
def test_observations_of_a_task_are_normalised_by_its_own_scale(name: str) -> None:
    task = find_task(name)
    config = TaskConfig.of(task)
    seen = normalize_observation(SAMPLE | {"val_loss": task.guess_loss, "epoch": task.episode_length}, config)
    assert seen["val_loss"] == pytest.approx(1.0)
    assert seen["epoch"] == 1.0
    assert all(-1 <= value <= 1 for value in seen.values())


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


def test_a_kind_more_gets_a_column_and_an_offer_in_every_slot() -> None:
    before = observation_width(2)
    with one_more_kind() as kind:
        population = Population(tiny_task(), 2, executor="loop")
        population.start([0, 1])
        population.step(torch.tensor([[0, kind.id - 1, 0, Op.GERMINATE], [0, 0, 0, Op.WAIT]]))
        features = signals_to_features(population.situation)
        slots = population.table.shape[1]
        assert features.shape[1] == observation_width(slots)
        assert observation_width(2) == before + 2 * 2 * (num_blueprints() - len(catalogue_names()["conv1d"]))
        grown, other = (describe_observation(row, slots) for row in features)
        assert grown[f"r0c0.slot.blueprint_{kind.id}"] == 1.0
        assert other[f"r0c0.slot.blueprint_{kind.id}"] == 0.0
        owed = rent(float(population.situation.catalogue.params[0, kind.id - 1]), population.host_params, 0.03)
        assert other[f"r0c0.economy.offer_{kind.id}"] == pytest.approx(POINTS * owed / 10)
        assert obs_to_base_features(SAMPLE | {"seed_blueprint_id": kind.id})[30:] == [0.0] * 5
    assert observation_width(2) == before


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
