"""Events of episodes, host by host: what the tables changed to, for people and logs. Nothing reads them back."""

from collections.abc import Mapping

from torch import Tensor

from esper.kasmina import Site, SlotTable, Transitions, find_blueprint, next_alpha
from esper.leyline import Stage
from esper.nissa import Hub
from esper.nissa.events import (
    AlphaHeld,
    EpisodeEnded,
    EpisodeStarted,
    EpochCompleted,
    GovernorRollback,
    SeedTransition,
)
from esper.tolaria.executors import EpochResult, Measurement


class EpisodeReporter:
    """Tells a hub what happens to N hosts; reads nothing from the tables where nobody listens."""

    def __init__(self, hub: Hub, sites: tuple[Site, ...], host_params: int) -> None:
        self._hub = hub
        self._sites = sites
        self._host_params = host_params

    def started(self, task: str, seeds: Mapping[int, int]) -> None:
        for host, seed in seeds.items() if self._hub.hears(EpisodeStarted.severity) else ():
            self._hub.tell(EpisodeStarted(task=task, seed=seed, host_params=self._host_params), env_id=host)

    def moved(
        self, before: SlotTable, after: SlotTable, changes: Transitions, epoch: Tensor, *, rolled_back: bool = False
    ) -> None:
        """Seeds changed their stage; `before` still knows the blueprint of one that is gone."""
        if not self._hub.hears(SeedTransition.severity):
            return
        columns = (changes.host, changes.slot, changes.old, changes.new, changes.refused)
        for host, slot, old, new, refused in zip(*(column.tolist() for column in columns), strict=True):
            site = self._sites[slot]
            blueprint = max(int(before.blueprint[host, slot]), int(after.blueprint[host, slot]))
            contribution = float(before.contribution[host, slot])
            payload = SeedTransition(
                epoch=int(epoch[host]),
                from_=Stage(old).name,
                to=Stage(new).name,
                blueprint=_name(site, blueprint),
                rolled_back=rolled_back,
                contribution=None if contribution != contribution else contribution,
                params=max(int(before.params[host, slot]), int(after.params[host, slot])),
                reason=None if rolled_back else _reason(Stage(old), Stage(new), refused),
            )
            self._hub.tell(payload, env_id=host, slot_id=site.slot_id)

    def held(self, before: SlotTable, after: SlotTable, trials: Tensor, epoch: Tensor) -> None:
        """Alphas did not rise from `before` to `after`, because `trials [N, S]` showed what that would cost."""
        if not self._hub.hears(AlphaHeld.severity):
            return
        tried = next_alpha(before)
        for host, slot in (after.holds > before.holds).nonzero().tolist():
            site = self._sites[slot]
            payload = AlphaHeld(
                epoch=int(epoch[host]),
                blueprint=find_blueprint(site.shape.family, int(after.blueprint[host, slot])).name,
                alpha=float(after.alpha[host, slot]),
                next_alpha=float(tried[host, slot]),
                cost=-float(trials[host, slot]),
                holds=int(after.holds[host, slot]),
            )
            self._hub.tell(payload, env_id=host, slot_id=site.slot_id)

    def rolled_back(self, host: int, reason: str, panics: int) -> None:
        self._hub.tell(GovernorRollback(reason=reason, panics=panics), env_id=host)

    def epoch(
        self,
        table: SlotTable,
        epoch: Tensor,
        result: EpochResult,
        measured: Measurement,
        running: Tensor,
        rolled_back: Tensor,
    ) -> None:
        for host in running.nonzero().flatten().tolist() if self._hub.hears(EpochCompleted.severity) else ():
            payload = EpochCompleted(
                epoch=int(epoch[host]),
                train_loss=float(result.loss[host]),
                val_loss=float(measured.loss[host]),
                val_score=float(measured.score[host]),
                params=self._host_params + int(table.added_params[host]),
                slots=[self._slot(table, measured, host, slot) for slot in range(len(self._sites))],
                rolled_back=bool(rolled_back[host]),
            )
            self._hub.tell(payload, env_id=host)

    def _slot(self, table: SlotTable, measured: Measurement, host: int, slot: int) -> dict[str, object]:
        site = self._sites[slot]
        return {
            "slot": site.slot_id,
            "stage": Stage(int(table.stage[host, slot])).name,
            "blueprint": _name(site, int(table.blueprint[host, slot])),
            "alpha": float(table.alpha[host, slot]),
            "contribution": float(table.contribution[host, slot]),
            "what_if": float(measured.prospects[host, slot]),
        }

    def ended(self, host: int, val_score: float, test_score: float, added_params: int) -> None:
        params = self._host_params + added_params
        payload = EpisodeEnded(val_score=val_score, test_score=test_score, added_params=added_params, params=params)
        self._hub.tell(payload, env_id=host)


def _name(site: Site, blueprint: int) -> str | None:
    return find_blueprint(site.shape.family, blueprint).name if blueprint else None


def _reason(old: Stage, new: Stage, refused: bool) -> str | None:
    if new is not Stage.CULLED or not (refused or old in (Stage.GERMINATED, Stage.TRAINING)):
        return None
    return "it would have cost more than a point three times" if refused else "it did not learn"
