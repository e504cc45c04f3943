"""What each kind of event carries: one record per kind, in one versioned schema.

A record becomes the payload of a `TelemetryEvent`, which adds where and when. Numbers that are not known are None or
NaN here and null in JSON. `SCHEMA_VERSION` rises when a field changes its meaning or goes; new fields do not raise it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from esper.leyline import EventType, InputError, Severity, TelemetryEvent

SCHEMA_VERSION = 2
LESSON_ROUND = 0
"""The round of what hosts tell in lessons, which come before the first round."""
PAYLOADS: dict[EventType, type["Payload"]] = {}
"""The record of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """The content of one event; a field's name is its key, without a trailing underscore."""

    kind: ClassVar[EventType]
    severity: ClassVar[Severity] = Severity.INFO

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            PAYLOADS[cls.kind] = cls

    def event(
        self, *, env_id: int | None = None, slot_id: str | None = None, round_: int | None = None
    ) -> TelemetryEvent:
        """The event that carries this, as of now."""
        payload = {spec.name.rstrip("_"): getattr(self, spec.name) for spec in fields(self)}
        return TelemetryEvent(self.kind, payload, self.severity, env_id, slot_id, round_)

    @classmethod
    def of(cls, payload: Mapping[str, Any]) -> Self:
        """From a payload, as read from a log; keys that a newer Esper added are left out."""
        names = {spec.name.rstrip("_"): spec.name for spec in fields(cls)}
        return cls(**{names[key]: value for key, value in payload.items() if key in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeStarted(Payload):
    """A host begins an episode."""

    kind = EventType.EPISODE_STARTED
    task: str
    seed: int
    host_params: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCompleted(Payload):
    """A host has trained for an epoch."""

    kind = EventType.EPOCH_COMPLETED
    severity = Severity.DEBUG
    epoch: int
    train_loss: float
    val_loss: float
    val_score: float
    params: int
    slots: Sequence[Mapping[str, Any]]
    """Per slot: its id, stage, blueprint, alpha, contribution (counterfactual) and what_if."""
    rolled_back: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedTransition(Payload):
    """A seed changed its stage."""

    kind = EventType.SEED_TRANSITION
    epoch: int
    from_: str
    to: str
    blueprint: str | None
    rolled_back: bool
    contribution: float | None = None
    """As last measured before this; None if it was not."""
    params: int = 0
    reason: str | None = None
    """Why a seed was culled that nobody asked to cull; None for every other move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlphaHeld(Payload):
    """A seed keeps its alpha for another epoch, because the next one would cost too much."""

    kind = EventType.ALPHA_HELD
    epoch: int
    blueprint: str
    alpha: float
    """As it stays."""
    next_alpha: float
    cost: float
    """By how much the validation score falls with the next alpha."""
    holds: int
    """How often this has happened to the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernorRollback(Payload):
    """The governor undid an epoch of a host."""

    kind = EventType.GOVERNOR_ROLLBACK
    severity = Severity.WARNING
    reason: str
    panics: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeEnded(Payload):
    """An episode is over; what only training knows is None elsewhere."""

    kind = EventType.EPISODE_ENDED
    val_score: float
    added_params: int
    params: int
    test_score: float | None = None
    """Training does not read the test split."""
    task: str | None = None
    steps: int | None = None
    objective: float | None = None
    twin_objective: float | None = None
    """Of the twin that was left alone."""
    price: float | None = None
    kept: int | None = None
    return_: float | None = None
    """Rewards summed over the episode, less what the twin earned."""
    ops: Mapping[str, int] | None = None
    """How often each op was chosen."""
    components: Mapping[str, float] | None = None
    """Named terms of the reward, summed over the episode; the twin's are not taken off."""
    dropped: bool = False
    """Lost with its worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionsRecorded(Payload):
    """All decisions of one episode: one entry per step in every list; None for a head that did not matter."""

    kind = EventType.DECISIONS_RECORDED
    op: list[str]
    slot: list[str | None]
    blueprint: list[str | None]
    blend: list[str | None]
    log_prob: Sequence[float]
    """Of the joint action."""
    value: Sequence[float]
    """What the critic expected from here."""
    reward: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Payload):
    """A run begins, or goes on."""

    kind = EventType.RUN_STARTED
    config: Mapping[str, Any]
    baselines: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonCompleted(Payload):
    """A new policy has imitated its teacher."""

    kind = EventType.LESSON_COMPLETED
    lesson: int
    gain: Mapping[str, float]
    first_loss: float
    last_loss: float
    left_out: int = 0
    """Episodes that were not imitated because an observation or a return was NaN or infinite."""
    skipped_steps: int = 0
    """Minibatches that were skipped because the loss or a gradient was not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCompleted(Payload):
    """A round in means over its episodes."""

    kind = EventType.ROUND_COMPLETED
    round: int
    objective: Mapping[str, float]
    gain: Mapping[str, float]
    validation: Mapping[str, float] | None
    ops: Mapping[str, float]
    kept: float
    added_params: float
    components: Mapping[str, float]
    dropped: int
    explained_variance: float
    entropy: float
    approx_kl: float
    clip_fraction: float
    advantage_std: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suspicion(Payload):
    severity = Severity.WARNING
    epoch: int
    contribution: float
    """Points."""
    total_improvement: float
    """Points."""
    ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RansomwareSuspected(_Suspicion):
    """A seed matters much to a network that is worse than before it came."""

    kind = EventType.RANSOMWARE_SUSPECTED


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardHackingSuspected(_Suspicion):
    """A seed is credited with far more than the whole network has gained."""

    kind = EventType.REWARD_HACKING_SUSPECTED


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCompleted(Payload):
    """One PPO update in numbers; docs/instruments.md says what each means."""

    kind = EventType.UPDATE_COMPLETED
    update: int
    total_steps: int
    learning_rate: float
    metrics: Mapping[str, float]
    """The scalars of `PPOUpdateMetrics`, by their names."""
    heads: Mapping[str, Mapping[str, float]]
    """Per head: the metrics that are given per head, without `head_` in their names; means over epochs."""
    entropy_collapsed: Sequence[str]
    """Heads below the limit."""
    gradients: Mapping[str, float]
    """Health of the policy's gradients in the last minibatch before clipping, and drift, that of their norm."""
    lstm: Mapping[str, float] | None
    """State of the policy's memory over the round; None where it is not kept."""
    seeds: Mapping[str, float]
    """Epochs of seeds in the round: measured, with vanishing and with exploding gradients; suspected of gaming."""
    level: str
    """At which telemetry level this update ran."""

    @classmethod
    def of_metrics(cls, metrics: Mapping[str, Any], head_names: Sequence[str], **others: Any) -> Self:
        """With `metrics` sorted into scalars and numbers per head by what they are."""
        scalars = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
        per_head = {name: value for name, value in metrics.items() if isinstance(value, Mapping)}
        heads = {
            head: {name.removeprefix("head_"): _mean(value[head]) for name, value in per_head.items() if head in value}
            for head in head_names
        }
        return cls(metrics=scalars, heads=heads, **others)


def _mean(numbers: float | Sequence[float]) -> float:
    if isinstance(numbers, int | float):
        return numbers
    return sum(numbers) / len(numbers) if numbers else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AnomalyDetected(Payload):
    """An alarm."""

    kind = EventType.ANOMALY_DETECTED
    severity = Severity.WARNING
    anomaly: str
    message: str
    advice: str
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateExamined(Payload):
    """Debug records of one update."""

    kind = EventType.UPDATE_EXAMINED
    severity = Severity.DEBUG
    ratios: Mapping[str, Mapping[str, Any]]
    """Per head: the worst ratios of the last minibatch, where they are, and which actions they belong to."""
    stability: Mapping[str, Any]
    """Weights, gradients, losses and entropies of the last minibatch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Payload):
    """A checkpoint was written."""

    kind = EventType.CHECKPOINT_SAVED
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsDropped(Payload):
    """A sink was too slow: events are missing before this one."""

    kind = EventType.EVENTS_DROPPED
    severity = Severity.WARNING
    sink: str
    count: int


def payload_of(event: TelemetryEvent) -> Payload:
    """The content of `event` as its record."""
    try:
        return PAYLOADS[event.event_type].of(event.payload)
    except TypeError as error:
        raise InputError(f"a {event.event_type.value} event is not as this Esper writes it: {error}") from None


def read_events(path: Path) -> Iterator[TelemetryEvent]:
    """The events of a JSON-lines file, in order; lines that were cut off and kinds that are not known are left out."""
    try:
        file = path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    with file:
        for line in file:
            try:
                data = json.loads(line)
            except ValueError:
                continue
            event = _event(data, path)
            if event is not None:
                yield event


def _event(data: Any, path: Path) -> TelemetryEvent | None:
    if not isinstance(data, dict) or data.get("type") not in {kind.value for kind in EventType}:
        return None
    if data.get("v", SCHEMA_VERSION) > SCHEMA_VERSION:
        raise InputError(f"{path} was written by a newer Esper (schema {data['v']}; this one reads {SCHEMA_VERSION})")
    return TelemetryEvent(
        EventType(data["type"]),
        data["payload"],
        Severity[data["severity"]],
        data["env_id"],
        data["slot_id"],
        data.get("round"),
        data["timestamp"],
    )
