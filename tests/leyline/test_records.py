"""Records: what they hold, and that wrong types are named."""

import pytest

from esper.leyline import (
    EventType,
    InputError,
    SeedTelemetry,
    Stage,
    TelemetryEvent,
    TrainingSignals,
)


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
