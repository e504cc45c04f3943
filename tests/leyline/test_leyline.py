"""The contracts: what they hold, what they refuse, and that they stand alone."""

import importlib
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import esper.leyline as leyline
from esper.leyline import (
    HEAD_NAMES,
    OP_TARGETS,
    TRANSITIONS,
    Action,
    Blend,
    EventType,
    InputError,
    Mover,
    Op,
    SeedTelemetry,
    SlotConfig,
    SlotId,
    Stage,
    TelemetryEvent,
    TrainingSignals,
    sort_slot_ids,
)


def test_leyline_imports_with_every_other_package_blocked() -> None:
    blocked = ["kasmina", "tolaria", "tamiyo", "simic", "karn", "nissa", "api", "cli"]
    script = "import sys\n"
    script += "".join(f"sys.modules['esper.{name}'] = None\n" for name in blocked)
    script += "sys.modules['torch'] = None\nimport esper.leyline\n"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_constant_is_exported() -> None:
    for module_name in ("constants", "thresholds", "stages", "actions"):
        module = importlib.import_module(f"esper.leyline.{module_name}")
        constants = {name for name in vars(module) if name.isupper() and not name.startswith("_")}
        assert constants <= set(leyline.__all__)


def test_head_names_are_a_tuple_in_storage_order() -> None:
    assert HEAD_NAMES == ("slot", "blueprint", "blend", "op")
    assert isinstance(HEAD_NAMES, tuple)


def test_default_slot_config_is_one_cached_instance_of_three_slots() -> None:
    assert SlotConfig.default() is SlotConfig.default()
    assert SlotConfig.default().slot_ids == ("r0c0", "r0c1", "r0c2")
    assert {SlotConfig.default(): "usable as a key"}[SlotConfig.of_size(3)] == "usable as a key"


def test_slot_config_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        SlotConfig.default().slot_ids = ("r0c0",)  # type: ignore[misc]


@given(st.integers(1, 20))
def test_slot_config_survives_plain_types(num_slots: int) -> None:
    config = SlotConfig.of_size(num_slots)
    assert SlotConfig.from_dict(config.to_dict()) == config
    assert config.num_slots == num_slots


def test_slot_config_survives_a_safe_checkpoint(tmp_path: Path) -> None:
    torch.save({"slot_config": SlotConfig.default().to_dict()}, tmp_path / "checkpoint.pt")
    loaded = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert SlotConfig.from_dict(loaded["slot_config"]) == SlotConfig.default()


@pytest.mark.parametrize("slot_ids", [(), ("r0c0", "r0c0"), ("r0c1", "r0c0"), ("left",)])
def test_slot_config_refuses_unusable_ids(slot_ids: tuple[str, ...]) -> None:
    with pytest.raises(InputError):
        SlotConfig(slot_ids)


def test_slot_config_names_the_valid_ids_when_asked_for_another() -> None:
    assert SlotConfig.default().index("r0c1") == 1
    with pytest.raises(InputError, match="r0c0, r0c1, r0c2"):
        SlotConfig.default().index("r9c9")
    with pytest.raises(InputError, match="slot_ids"):
        SlotConfig.from_dict({"ids": []})


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_slot_ids_parse_back_to_themselves(row: int, col: int) -> None:
    assert SlotId.parse(str(SlotId(row, col))) == SlotId(row, col)


@pytest.mark.parametrize("text", ["", "r0", "c0", "r0c", "r-1c0", "R0C0", "r00c0", "r0c0 ", "r0c0\n", "r٣c0"])
def test_malformed_slot_ids_are_value_errors(text: str) -> None:
    with pytest.raises(ValueError, match="malformed slot id"):
        SlotId.parse(text)


def test_negative_slot_places_are_refused() -> None:
    with pytest.raises(InputError):
        SlotId(-1, 0)


def test_slot_ids_sort_by_number_as_slot_configs_do() -> None:
    assert sort_slot_ids(["r1c0", "r0c10", "r0c2"]) == ["r0c2", "r0c10", "r1c0"]
    assert sort_slot_ids(reversed(SlotConfig.of_size(12).slot_ids)) == list(SlotConfig.of_size(12).slot_ids)


def test_stage_codes_fill_the_observation_range() -> None:
    assert [stage.value for stage in Stage] == list(range(8))
    assert Stage.BLENDING.value == 3


def test_every_op_is_backed_by_a_transition_that_an_action_makes() -> None:
    targets_of_actions = {new for (_, new), mover in TRANSITIONS.items() if Mover.ACTION in mover}
    assert set(OP_TARGETS.values()) == targets_of_actions
    assert set(OP_TARGETS) == set(Op) - {Op.WAIT}
    assert Op.WAIT.value == 0


@given(st.builds(Action, st.sampled_from(Op), st.integers(0, 8), st.integers(0, 20), st.sampled_from(Blend)))
def test_actions_round_trip_through_dicts_in_head_order(action: Action) -> None:
    assert tuple(action.to_dict()) == HEAD_NAMES
    assert Action.from_dict(action.to_dict()) == action


@pytest.mark.parametrize(
    "values",
    [
        {"slot": 0, "blueprint": 0, "blend": 0},
        {"slot": 0, "blueprint": 0, "blend": 0, "op": 9},
        {"slot": -1, "blueprint": 0, "blend": 0, "op": 0},
        {"slot": 0, "blueprint": -1, "blend": 0, "op": 1},
    ],
)
def test_impossible_actions_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(InputError):
        Action.from_dict(values)


def make_signals(**overrides: object) -> TrainingSignals:
    values: dict[str, object] = {
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
        "accuracy_history_5": (35.0, 37.0, 39.0, 41.0, 43.0),
        "available_slots": 2,
    }
    return TrainingSignals(**{**values, **overrides})  # type: ignore[arg-type]


def test_signals_accept_whole_numbers_and_unmeasured_counterfactuals() -> None:
    signals = make_signals(train_loss=2)
    assert signals.train_loss == 2
    assert signals.seed_counterfactual is None
    assert make_signals(seed_counterfactual=0.5).seed_counterfactual == 0.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epoch", 1.5),
        ("epoch", True),
        ("train_loss", "1.5"),
        ("loss_history_5", [1.0]),
        ("loss_history_5", (1.0, "x")),
        ("seed_stage", 3),
        ("seed_counterfactual", "none"),
    ],
)
def test_signals_refuse_wrong_types_and_name_the_field(name: str, value: object) -> None:
    with pytest.raises(InputError, match=name):
        make_signals(**{name: value})


def test_seed_telemetry_holds_ten_numbers_and_checks_them() -> None:
    telemetry = SeedTelemetry(0.5, 1.0, False, False, 43.0, 2.0, 5, Stage.BLENDING, 0.5, 0.4)
    assert len(SeedTelemetry.__slots__) == 10
    assert telemetry.stage is Stage.BLENDING
    with pytest.raises(InputError, match="has_vanishing"):
        SeedTelemetry(0.5, 1.0, 0.3, False, 43.0, 2.0, 5, Stage.BLENDING, 0.5, 0.4)  # type: ignore[arg-type]


def test_events_carry_where_and_when_and_check_their_types() -> None:
    event = TelemetryEvent(EventType.SEED_TRANSITION, {"to": "TRAINING"}, env_id=3, slot_id="r0c1")
    assert event.env_id == 3
    assert event.timestamp > 0
    with pytest.raises(InputError, match="event_type"):
        TelemetryEvent("seed_transition")  # type: ignore[arg-type]
