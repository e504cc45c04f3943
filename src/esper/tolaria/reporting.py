"""Events of episodes, host by host: what the tables changed to, for people and logs. Nothing reads them back."""

from collections.abc import Mapping

from torch import Tensor

from esper.kasmina import Site, SlotTable, Transitions, find_blueprint
from esper.leyline import EventType, Severity, Stage, TelemetryEvent
from esper.nissa import Hub
from esper.tolaria.executors import EpochResult, Measurement


class EpisodeReporter:
    """Tells a hub what happens to N hosts; does nothing where nobody listens."""

    def __init__(self, hub: Hub, sites: tuple[Site, ...], host_params: int) -> None:
        self._hub = hub
        self._sites = sites
        self._host_params = host_params

    def started(self, task: str, seeds: Mapping[int, int]) -> None:
        """Episodes of these hosts begin."""
        for host, seed in seeds.items() if self._hub.listening else ():
            self._emit(EventType.EPISODE_STARTED, {"task": task, "seed": seed, "host_params": self._host_params}, host)

    def moved(
        self, before: SlotTable, after: SlotTable, changes: Transitions, epoch: Tensor, *, rolled_back: bool = False
    ) -> None:
        """Seeds changed their stage; `before` still knows the blueprint of one that is gone."""
        if not self._hub.listening:
            return
        columns = (changes.host, changes.slot, changes.old, changes.new)
        for host, slot, old, new in zip(*(column.tolist() for column in columns), strict=True):
            site = self._sites[slot]
            blueprint = max(int(before.blueprint[host, slot]), int(after.blueprint[host, slot]))
            payload = {
                "epoch": int(epoch[host]),
                "from": Stage(old).name,
                "to": Stage(new).name,
                "blueprint": find_blueprint(site.shape.family, blueprint).name if blueprint else None,
                "rolled_back": rolled_back,
            }
            self._emit(EventType.SEED_TRANSITION, payload, host, slot_id=site.slot_id)

    def rolled_back(self, host: int, reason: str, panics: int) -> None:
        """The governor undid an epoch."""
        payload = {"reason": reason, "panics": panics}
        self._emit(EventType.GOVERNOR_ROLLBACK, payload, host, Severity.WARNING)

    def epoch(
        self,
        table: SlotTable,
        epoch: Tensor,
        result: EpochResult,
        measured: Measurement,
        running: Tensor,
        rolled_back: Tensor,
    ) -> None:
        """An epoch is over."""
        for host in running.nonzero().flatten().tolist() if self._hub.listening else ():
            payload = {
                "epoch": int(epoch[host]),
                "train_loss": float(result.loss[host]),
                "val_loss": float(measured.loss[host]),
                "val_score": float(measured.score[host]),
                "params": self._host_params + int(table.added_params[host]),
                "slots": [self._slot(table, measured, host, slot) for slot in range(len(self._sites))],
                "rolled_back": bool(rolled_back[host]),
            }
            self._emit(EventType.EPOCH_COMPLETED, payload, host, Severity.DEBUG)

    def _slot(self, table: SlotTable, measured: Measurement, host: int, slot: int) -> dict[str, object]:
        site, blueprint = self._sites[slot], int(table.blueprint[host, slot])
        return {
            "slot": site.slot_id,
            "stage": Stage(int(table.stage[host, slot])).name,
            "blueprint": find_blueprint(site.shape.family, blueprint).name if blueprint else None,
            "alpha": float(table.alpha[host, slot]),
            "contribution": float(table.contribution[host, slot]),
            "what_if": float(measured.prospects[host, slot]),
        }

    def ended(self, host: int, val_score: float, test_score: float, added_params: int) -> None:
        """An episode is over and measured."""
        params = {"added_params": added_params, "params": self._host_params + added_params}
        self._emit(EventType.EPISODE_ENDED, {"val_score": val_score, "test_score": test_score, **params}, host)

    def _emit(
        self,
        event_type: EventType,
        payload: Mapping[str, object],
        host: int,
        severity: Severity = Severity.INFO,
        slot_id: str | None = None,
    ) -> None:
        self._hub.emit(TelemetryEvent(event_type, payload, severity, host, slot_id))
