"""One episode of one host: the controller acts, the host trains, is measured, and its seeds move on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from esper.kasmina import (
    UNLIMITED,
    SlotTable,
    Transitions,
    find_blueprint,
    graft,
    stage_changes,
)
from esper.leyline import DEFAULT_PRICE, EventType, InputError, Severity, Stage, TelemetryEvent, objective
from esper.nissa import Hub
from esper.tolaria.governor import Governor, GovernorSettings
from esper.tolaria.host_training import EpochResult, HostTrainer, Measurement, build_optimizer, measure
from esper.tolaria.signals import SignalTable, TrackerSettings, track
from esper.tolaria.situation import Situation
from esper.tolaria.streams import Streams, drawing_from
from esper.tolaria.tasks import Task


@dataclass(frozen=True, slots=True)
class EpisodeSettings:
    """How an episode runs; what is not given comes from the task."""

    length: int | None = None
    """Steps (host epochs) in the episode."""
    price: float = DEFAULT_PRICE
    """What adding as many parameters as the host has costs."""
    budget: int = UNLIMITED
    """The most parameters that all seeds together may add."""
    what_if: bool = False
    """Whether events also tell what each isolated seed would bring at alpha 1; nothing else reads it."""
    governor: GovernorSettings = field(default_factory=GovernorSettings)
    tracker: TrackerSettings = field(default_factory=TrackerSettings)

    def __post_init__(self) -> None:
        if self.length is not None and self.length < 1:
            raise InputError(f"episode length must be 1 or more; got {self.length}")
        if not (math.isfinite(self.price) and self.price >= 0):
            raise InputError(f"price must be a number of 0 or more; got {self.price}")
        if self.budget < 0:
            raise InputError(f"budget must be 0 or more parameters; got {self.budget}")


@dataclass(frozen=True, slots=True)
class Kept:
    """A seed that was kept for good."""

    path: str
    slot_id: str
    blueprint: str
    params: int


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """What an episode ended with: the network that an export would give."""

    val_score: float
    test_score: float
    host_params: int
    added_params: int
    price: float
    kept: tuple[Kept, ...]
    panics: int

    @property
    def val_objective(self) -> float:
        """The objective on the validation split: what a controller is to maximise."""
        return objective(self.val_score, self.added_params, self.host_params, self.price)

    @property
    def test_objective(self) -> float:
        """The objective on the test split: what is reported."""
        return objective(self.test_score, self.added_params, self.host_params, self.price)


class Episode:
    """A host, its slots, its optimiser and its random streams from the first epoch to the last.

    The same task, seed, settings and actions give the same episode, bit for bit. `fossils` (slot to
    blueprint) are seeds that are there from the start, for good: a network that is not grown.
    """

    def __init__(
        self,
        task: Task,
        seed: int,
        settings: EpisodeSettings | None = None,
        *,
        fossils: Mapping[str, str] | None = None,
        hub: Hub | None = None,
        env_id: int = 0,
    ) -> None:
        self.task = task
        self.settings = settings or EpisodeSettings()
        self.length = self.settings.length or task.episode_length
        self._hub = hub or Hub()
        self._env_id = env_id
        self._splits = task.splits()
        streams = Streams.from_seed(seed)
        with drawing_from(streams.init):
            host = task.build_host()
        optimizer = build_optimizer(host, task.optimizer)
        self.model = graft(
            host,
            at=host.slot_sites,
            example=self._splits.val.x[:2],
            optimizer=optimizer,
            isolation="shadow",
            budget=self.settings.budget,
            generator=streams.seeds,
        )
        self.host_params = sum(parameter.numel() for parameter in host.parameters())
        self._trainer = HostTrainer(self.model, optimizer, task, self.length, streams.shuffle)
        self.model.plant_fossils(fossils or {})
        self.model.score = torch.tensor([measure(self.model, self._splits.val).score])
        self.signals = SignalTable.empty(1)
        self.signals.score_history[:, -1] = self.model.score
        # Last, because what it sees now is what a panic in the first epoch returns to.
        self._governor = Governor(self.model, task.guess_loss, self.settings.governor)
        self._emit(EventType.EPISODE_STARTED, {"task": task.name, "seed": seed, "host_params": self.host_params})

    @property
    def situation(self) -> Situation:
        """What the controller sees now."""
        return Situation(
            self.model.table,
            self.signals,
            self.model.masks,
            self.model.catalogue,
            self.model.sites,
            self.host_params,
            torch.tensor([self.settings.price]),
            self.model.budget,
            self.length,
        )

    @property
    def done(self) -> bool:
        """Whether the episode is over, by time or by the governor."""
        return int(self.signals.epoch) >= self.length or self._governor.exhausted

    def step(self, actions: Tensor) -> None:
        """Act (`actions [1, 4]`), train one epoch, measure, move seeds on, and let the governor judge.

        An illegal action raises before anything changes.
        """
        if self.done:
            raise InputError("this episode is over; start another")
        self._report(self.model.table, self.model.act(actions))
        self._report(self.model.table, self.model.begin_epoch())
        result = self._trainer.train_epoch()
        measured = measure(self.model, self._splits.val, what_if=self.settings.what_if)
        before = self.model.table
        moved = self.model.end_epoch(
            score=measured.score,
            loss=result.loss,
            contributions=measured.contributions,
            seed_gradients=result.seed_grad_norms,
        )
        self._report(before, moved)
        self._govern(result, measured)

    def _govern(self, result: EpochResult, measured: Measurement) -> None:
        """Let the governor judge the epoch: take it into the signals, or tell what was undone."""
        judged = self.model.table
        panic = self._governor.check(result.loss, measured.loss)
        if panic is None:
            self._track(result, measured)
        else:
            # The epoch is spent; what was known before it still holds.
            self.signals = replace(self.signals, epoch=self.signals.epoch + 1)
            why = {"reason": panic, "panics": self._governor.panics}
            self._emit(EventType.GOVERNOR_ROLLBACK, why, Severity.WARNING)
            self._report(judged, stage_changes(judged, self.model.table), rolled_back=True)
        self._emit_epoch(result, measured, rolled_back=panic is not None)

    def finish(self) -> EpisodeResult:
        """End the episode: drop what was not kept for good and measure what remains, test split included."""
        self.model.drop_unfinished()
        table = self.model.table
        kept = tuple(
            Kept(site.path, site.slot_id, find_blueprint(site.shape.family, blueprint).name, params)
            for site, blueprint, params in zip(
                self.model.sites, table.blueprint[0].tolist(), table.params[0].tolist(), strict=True
            )
            if blueprint
        )
        result = EpisodeResult(
            val_score=measure(self.model, self._splits.val).score,
            test_score=measure(self.model, self._splits.test).score,
            host_params=self.host_params,
            added_params=int(table.added_params),
            price=self.settings.price,
            kept=kept,
            panics=self._governor.panics,
        )
        params = {"added_params": result.added_params, "params": result.host_params + result.added_params}
        scores = {"val_score": result.val_score, "test_score": result.test_score}
        self._emit(EventType.EPISODE_ENDED, {**scores, **params})
        return result

    def _track(self, result: EpochResult, measured: Measurement) -> None:
        self.signals = track(
            self.signals,
            self.settings.tracker,
            train_loss=torch.tensor([result.loss]),
            train_score=torch.tensor([result.accuracy]),
            val_loss=torch.tensor([measured.loss]),
            val_score=torch.tensor([measured.score]),
            host_grad_norm=torch.tensor([result.host_grad_norm]),
        )

    def _report(self, before: SlotTable, transitions: Transitions, *, rolled_back: bool = False) -> None:
        """Emit stage changes; `before` still knows the blueprint of a seed that they removed."""
        rows = zip(transitions.slot.tolist(), transitions.old.tolist(), transitions.new.tolist(), strict=True)
        for slot, old, new in rows:
            site = self.model.sites[slot]
            blueprint = max(int(before.blueprint[0, slot]), int(self.model.table.blueprint[0, slot]))
            payload = {
                "epoch": int(self.signals.epoch) + (0 if rolled_back else 1),
                "from": Stage(old).name,
                "to": Stage(new).name,
                "blueprint": find_blueprint(site.shape.family, blueprint).name if blueprint else None,
                "rolled_back": rolled_back,
            }
            self._emit(EventType.SEED_TRANSITION, payload, slot_id=site.slot_id)

    def _emit_epoch(self, result: EpochResult, measured: Measurement, *, rolled_back: bool) -> None:
        slots = []
        for site, prospect in zip(self.model.sites, measured.prospects.tolist(), strict=True):
            view = self.model.slot(site.slot_id)
            seed = {"blueprint": view.blueprint, "alpha": view.alpha, "contribution": view.contribution}
            slots.append({"slot": site.slot_id, "stage": view.stage.name, **seed, "what_if": prospect})
        payload = {
            "epoch": int(self.signals.epoch),
            "train_loss": result.loss,
            "val_loss": measured.loss,
            "val_score": measured.score,
            "params": self.host_params + int(self.model.table.added_params),
            "slots": slots,
            "rolled_back": rolled_back,
        }
        self._emit(EventType.EPOCH_COMPLETED, payload, Severity.DEBUG)

    def _emit(
        self,
        event_type: EventType,
        payload: Mapping[str, object],
        severity: Severity = Severity.INFO,
        slot_id: str | None = None,
    ) -> None:
        self._hub.emit(TelemetryEvent(event_type, payload, severity, self._env_id, slot_id))
