"""The dictionary view of a host with one seed: the agreed values, whatever form it is asked for in."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.simic.control.features import (
    TaskConfig,
    normalize_observation,
    obs_to_base_features,
    obs_to_base_features_tensor,
    safe,
    signals_to_features,
)
from esper.tasks import find_task
from tests.catalogues import one_more_kind
from tests.simic.lives import make_situation

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


def test_a_kind_more_has_no_column_in_this_view() -> None:
    with one_more_kind() as kind:
        assert obs_to_base_features(SAMPLE | {"seed_blueprint_id": kind.id})[30:] == [0.0] * 5
