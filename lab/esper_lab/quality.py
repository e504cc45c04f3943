"""The table that the claim rests on: ways of spending the same training, on the same tasks and seeds, at each price.

`esper bench quality` shows it. A row is a controller, a network that is not grown, a search over such networks, or the
subject with part of it taken away; rows of one task have the same seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from esper.api import find_controller
from esper.leyline import POINTS, InputError
from esper.simic.search import SearchJob, SearchSettings, search_tasks
from esper.simic.search.search import best_finalist
from esper.tamiyo import Controller, Schedule, run_episodes
from esper.tasks import Task, find_task
from esper.tolaria import EpisodeResult, EpisodeSettings, Situation
from esper_lab.ablations import run_ablations
from esper_lab.growth import run_from_scratch, run_widened, widenings
from esper_lab.static_search import best_of, draw_networks, train_networks

SEARCHES = (1, 4, 16)
"""Candidates of a random search over static networks."""
PLANS = "best plan of the task's own search"


@dataclass(frozen=True, slots=True)
class QualitySettings:
    """What is compared, and how."""

    controllers: tuple[str, ...]
    """Names, run folders or files."""
    subjects: tuple[str, ...]
    """Those of them that the claim is about; of the first there are networks of the same size, and ablations."""
    prices: tuple[float, ...] = (0.03, 0.01)
    """Each is a table of its own."""
    seeds: int = 16
    seed: int = 0
    """The first of the seeds."""
    static: int = max(SEARCHES)
    """Static networks trained for the random search; 0: no search."""
    same_size: bool = True
    """Whether networks of the size that the first subject grew are trained too."""
    ablations: bool = False
    """Whether the first subject is also played with part of it taken away."""
    plans: Path | None = None
    """Folder of `esper search`, whose best plan for each task is compared too."""
    search: SearchSettings = field(default_factory=SearchSettings)
    """As in that search."""
    batches_per_epoch: int | None = None
    """None: each task's own number."""

    def episode(self, price: float) -> EpisodeSettings:
        return EpisodeSettings(price=price, batches_per_epoch=self.batches_per_epoch)

    @property
    def seed_range(self) -> range:
        return range(self.seed, self.seed + self.seeds)


@dataclass(frozen=True, slots=True)
class Row:
    """What one way of spending the training came to on a task, seed by seed."""

    objective: tuple[float, ...]
    """On the test split, in points."""
    accuracy: tuple[float, ...]
    """On the test split, in percent."""
    growth: float
    """Mean of parameters / those of the host."""
    compute: float
    """FLOPs of training and measuring / those of the host left alone."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "objective": list(self.objective),
            "accuracy": list(self.accuracy),
            "growth": self.growth,
            "compute": self.compute,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Row":
        return cls(tuple(data["objective"]), tuple(data["accuracy"]), data["growth"], data["compute"])


Table = dict[str, dict[str, Row]]
"""By price and name of the row."""


def missing_data(task: str) -> str | None:
    """Why the data of `task` is not here, if it is not."""
    try:
        find_task(task).splits()
    except InputError as error:
        return str(error)
    return None


def play_task(name: str, settings: QualitySettings) -> Table:
    """All rows of one task."""
    torch.set_num_threads(1)
    task = find_task(name)
    seeds = settings.seed_range
    trained = []
    if settings.static:
        networks = draw_networks(task, settings.static)
        trained = train_networks(task, networks, seeds, settings.episode(settings.prices[0]))
    table: Table = {}
    for price in settings.prices:
        played, compute = _play_controllers(task, settings, price)
        if settings.same_size:
            played |= _same_size(task, played[settings.subjects[0]], settings, price)
        rows = {name: _row(results, compute.get(name, _static_compute(results))) for name, results in played.items()}
        table[str(price)] = rows | _searched([[replace(r, price=price) for r in results] for results in trained])
    return table


def _play_controllers(
    task: Task, settings: QualitySettings, price: float
) -> tuple[dict[str, list[EpisodeResult]], dict[str, float]]:
    """Episodes, and what they computed where that is known."""
    seeds, episode = settings.seed_range, settings.episode(price)
    played: dict[str, list[EpisodeResult]] = {}
    compute: dict[str, float] = {}
    for name in settings.controllers:
        meter = Meter(find_controller(name), task, episode)
        played[name] = run_episodes(task, meter, seeds, episode)
        compute[name] = meter.compute
        if settings.ablations and name == settings.subjects[0]:
            ablated = run_ablations(task, find_controller(name), seeds, episode)
            played |= {f"{name}, {which}": results for which, results in ablated.items()}
    if settings.plans is not None:
        job = SearchJob((task.name,), settings.plans, settings.search, EpisodeSettings(merit=False))
        (found,) = search_tasks(job)
        plan = Schedule(best_finalist(found.finalists, found.host_params, price).plan)
        played[PLANS] = run_episodes(task, plan, seeds, episode)
    return played, compute


class Meter:
    """Decides as another controller does, and adds up what hosts compute meanwhile: training, and all that is measured.

    Not counted are merit and the controller itself: a few samples in five epochs, and a small network once an epoch.
    """

    def __init__(self, controller: Controller, task: Task, settings: EpisodeSettings) -> None:
        self.name = controller.name
        self._controller = controller
        batches = settings.batches_per_epoch or task.batches_per_epoch
        self._trained = 3 * batches * task.batch_size  # a backward pass is two forward passes
        self._measured = len(task.splits().val)
        self._passes: list[float] = []

    @property
    def compute(self) -> float:
        """Of all hosts so far, in the mean, relative to hosts that are left alone."""
        return fmean(self._passes) / (self._trained + self._measured)

    def reset(self, num_hosts: int, seed: int) -> None:
        self._controller.reset(num_hosts, seed)

    def decide(self, situation: Situation) -> Tensor:
        table = situation.table
        # After an epoch the network is the one that was trained in it; each blended seed was also left out once.
        if int(situation.signals.epoch.max()) > 0:
            size = 1 + situation.planted_flops.sum(1) / situation.host_flops
            spent = size * (self._trained + self._measured * (1 + table.blended.sum(1)))
            self._passes += spent.tolist()
        return self._controller.decide(situation)


def _same_size(
    task: Task, grown: Sequence[EpisodeResult], settings: QualitySettings, price: float
) -> dict[str, list[EpisodeResult]]:
    """Networks of the size that was grown, from scratch: each architecture, and hosts widened to the mean size."""
    seeds, episode = settings.seed_range, settings.episode(price)
    rows = {"the same architecture from scratch": run_from_scratch(task, grown, seeds, episode)}
    try:
        names = list(widenings(task, 0))
    except InputError:  # a host without widths
        return rows
    added = round(fmean(result.added_params for result in grown))
    alike = [replace(result, added_params=added) for result in grown]
    wide = [run_widened(task, which, alike, seeds, episode) for which in names]
    best = max(wide, key=lambda results: fmean(result.val_objective for result in results))
    return rows | {"widened to the same size": best}


def _searched(trained: Sequence[Sequence[EpisodeResult]]) -> dict[str, Row]:
    """Searches with so many candidates; those that fit into what was trained."""
    rows = {}
    for count in SEARCHES:
        if count > len(trained):
            break
        chosen = best_of(trained, count)
        rows[f"best of {count} static networks" if count > 1 else "a static network at random"] = Row(
            tuple(POINTS * fmean(result.test_objective for result in choices) for choices in chosen),
            tuple(POINTS * fmean(result.test_score for result in choices) for choices in chosen),
            fmean(_growth(result) for choices in chosen for result in choices),
            count * fmean(_static_compute(results) for results in trained),
        )
    return rows


def _row(results: Sequence[EpisodeResult], compute: float) -> Row:
    return Row(
        tuple(POINTS * result.test_objective for result in results),
        tuple(POINTS * result.test_score for result in results),
        fmean(map(_growth, results)),
        compute,
    )


def _growth(result: EpisodeResult) -> float:
    return 1 + result.added_params / result.host_params


def _static_compute(results: Sequence[EpisodeResult]) -> float:
    """Of networks that are there from the start and measured as often as the host alone."""
    return fmean(1 + result.added_flops / result.host_flops for result in results)
