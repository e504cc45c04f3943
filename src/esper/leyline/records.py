"""What is maximised, and the records that cross package borders: training signals, seed telemetry, telemetry events.

Each record checks the types of its fields when made, so that a wrong value is named where it appears and not three
packages later.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Final, Protocol, Self, TypeVar

from esper.leyline.actions import NO_BLUEPRINT, Stage
from esper.leyline.checks import check_field_types

DEFAULT_PRICE: Final = 0.03
"""What adding as many parameters as the host has costs, in units of quality."""
POINTS: Final = 100.0
"""Points in a quality of 1: what people call points of accuracy."""


class Quantity(Protocol):
    """A float, or a tensor of them: whatever can be added, subtracted, multiplied and divided."""

    def __add__(self, other: Any, /) -> Self: ...
    def __sub__(self, other: Any, /) -> Self: ...
    def __mul__(self, other: Any, /) -> Self: ...
    def __truediv__(self, other: Any, /) -> Self: ...


Q = TypeVar("Q", bound=Quantity)


def charge(added: Q, host: float, price: Q | float) -> Q:
    """What `added` costs where as much as the `host` has costs the price; parameters and FLOPs alike."""
    return added * price / host


def rent(
    added_params: Q,
    host_params: float,
    price: Q,
    added_flops: Q | float = 0.0,
    host_flops: float = 1.0,
    flop_price: float = 0.0,
) -> Q:
    """What keeping what was added costs, relative to the size of the host and to the work that it does."""
    return charge(added_params, host_params, price) + charge(added_flops, host_flops, flop_price)


def objective(quality: Q, *rented: Any) -> Q:
    """`quality`, in [0, 1], minus the rent of what was added; what follows it are the arguments of `rent`."""
    owed: Q = rent(*rented)
    return quality - owed


@dataclass(frozen=True, slots=True)
class TrainingSignals:
    """What one environment shows after one epoch, one seed in view. Accuracies are in percent, 0 to 100."""

    epoch: int
    global_step: int
    train_loss: float
    val_loss: float
    loss_delta: float
    train_accuracy: float
    val_accuracy: float
    accuracy_delta: float
    plateau_epochs: int
    best_val_accuracy: float
    best_val_loss: float
    loss_history_5: tuple[float, ...]
    accuracy_history_5: tuple[float, ...]
    available_slots: int
    has_active_seed: bool = False
    seed_stage: Stage = Stage.DORMANT
    seed_epochs_in_stage: int = 0
    seed_alpha: float = 0.0
    seed_improvement: float = 0.0
    seed_counterfactual: float | None = None
    """None means that no counterfactual was measured, which is not the same as a contribution of 0."""
    seed_blueprint_id: int = NO_BLUEPRINT
    host_grad_norm: float = 0.0
    host_learning_phase: float = 0.0

    def __post_init__(self) -> None:
        check_field_types(self)


@dataclass(frozen=True, slots=True)
class SeedTelemetry:
    """The ten numbers that describe the health and progress of one seed."""

    gradient_norm: float
    gradient_health: float
    has_vanishing: bool
    has_exploding: bool
    accuracy: float
    accuracy_delta: float
    epochs_in_stage: int
    stage: Stage
    alpha: float
    episode_progress: float

    def __post_init__(self) -> None:
        check_field_types(self)


class EventType(StrEnum):
    """Kinds of things worth recording."""

    EPISODE_STARTED = "episode_started"
    EPOCH_COMPLETED = "epoch_completed"
    SEED_TRANSITION = "seed_transition"
    ALPHA_HELD = "alpha_held"
    """A seed keeps its alpha, because the next one would cost too much."""
    GOVERNOR_ROLLBACK = "governor_rollback"
    EPISODE_ENDED = "episode_ended"
    RUN_STARTED = "run_started"
    LESSON_COMPLETED = "lesson_completed"
    """A new policy has imitated its teacher."""
    ROUND_COMPLETED = "round_completed"
    DECISIONS_RECORDED = "decisions_recorded"
    """What was decided in an episode, step by step."""
    UPDATE_COMPLETED = "update_completed"
    """The controller has learned from a round."""
    UPDATE_EXAMINED = "update_examined"
    """Debug records of an update."""
    ANOMALY_DETECTED = "anomaly_detected"
    CHECKPOINT_SAVED = "checkpoint_saved"
    EVENTS_DROPPED = "events_dropped"
    """A sink was too slow, and its record has a gap."""
    RANSOMWARE_SUSPECTED = "ransomware_suspected"
    """A seed matters much to a network that is worse than before it came: it made itself needed."""
    REWARD_HACKING_SUSPECTED = "reward_hacking_suspected"
    """A seed is credited with far more than the whole network has gained."""


class Severity(IntEnum):
    """How much an event matters to someone watching."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True)
class TelemetryEvent:
    """One thing that happened, and where."""

    event_type: EventType
    payload: Mapping[str, object] = field(default_factory=dict)
    severity: Severity = Severity.INFO
    env_id: int | None = None
    slot_id: str | None = None
    round: int | None = None
    """The training round, counted from 1."""
    timestamp: float = field(default_factory=time.time)
    """Seconds since the Unix epoch. Nothing that decides may read it: it differs between equal runs."""

    def __post_init__(self) -> None:
        check_field_types(self)
