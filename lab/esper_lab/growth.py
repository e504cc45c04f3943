"""What growing brings: controllers and static networks on the same seeds, and the best open-loop schedule.

`esper bench growth` and `esper bench oracle` show it.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TypeVar

from rich import box
from rich.console import Console
from rich.table import Table

from esper.api.statistics import Estimate
from esper.kasmina import build_host, num_blueprints
from esper.leyline import InputError
from esper.tamiyo import Heuristic, HeuristicSettings, Never, Planting, Schedule, make_controller, run_episodes
from esper.tasks import HostSettings, Task
from esper.tolaria import EpisodeResult, EpisodeSettings
from esper.tolaria.records import Kept
from esper_lab.timing import Progress

Key = TypeVar("Key")

_LAST_PLANTING_STEP = 14
"""A seed planted later than this can hardly be blended and learn before the episode ends."""
_HALVINGS = (1, 3, 8)
"""Seeds that the candidates of each round of the search are judged on; two thirds go after each."""


@dataclass(frozen=True, slots=True)
class Row:
    """How one way of spending the same training did."""

    name: str
    results: tuple[EpisodeResult, ...]

    @property
    def test_score(self) -> Estimate:
        """Test accuracy."""
        return Estimate.of([result.test_score for result in self.results])

    @property
    def test_objective(self) -> Estimate:
        """Objective on the test split."""
        return Estimate.of([result.test_objective for result in self.results])

    @property
    def parameters(self) -> Estimate:
        """Parameters of the final network."""
        return Estimate.of([result.host_params + result.added_params for result in self.results])

    def gain_over(self, other: "Row") -> Estimate:
        """Objective minus that of `other`, seed by seed."""
        pairs = zip(self.results, other.results, strict=True)
        return Estimate.of([mine.test_objective - theirs.test_objective for mine, theirs in pairs])

    def score_gain_over(self, other: "Row") -> Estimate:
        """Test accuracy minus that of `other`, seed by seed."""
        pairs = zip(self.results, other.results, strict=True)
        return Estimate.of([mine.test_score - theirs.test_score for mine, theirs in pairs])

    def numbers(self) -> dict[str, object]:
        """As plain data."""
        estimates = {"test_accuracy": self.test_score, "objective": self.test_objective, "parameters": self.parameters}
        return {name: asdict(estimate) for name, estimate in estimates.items()}


def print_rows(title: str, rows: Sequence[Row], console: Console) -> None:
    table = Table("", "test accuracy, %", "objective", "parameters", "gain over the first", title=title, box=box.SIMPLE)
    for row in rows:
        table.add_row(
            row.name,
            row.test_score.show(),
            row.test_objective.show(),
            f"{row.parameters.mean:,.0f}",
            "" if row is rows[0] else row.gain_over(rows[0]).show(),
        )
    console.print(table)


def print_margins(num_controllers: int, rows: Sequence[Row], console: Console) -> dict[str, dict[str, object]]:
    """Say how what is grown does beside the best widened host, by objective on validation; return it as numbers."""
    best = _best_on_validation([row for row in rows if row.name.endswith("widened")])
    numbers: dict[str, dict[str, object]] = {}
    for row in rows[: num_controllers + 1]:
        if row.name == "never":
            continue
        label, score, objective = f"{row.name} minus {best.name}", row.score_gain_over(best), row.gain_over(best)
        console.print(f"{label}: test accuracy {score.show()}, objective {objective.show()}", highlight=False)
        numbers[label] = {"accuracy": score.to_dict(), "objective": objective.to_dict()}
    return numbers


def _best_on_validation(rows: Sequence[Row]) -> Row:
    return max(rows, key=lambda row: sum(result.val_objective for result in row.results))


def compare(
    task: Task,
    names: Sequence[str],
    seeds: Sequence[int],
    progress: Progress,
    settings: EpisodeSettings,
    late_epoch: int,
) -> list[Row]:
    """A row per controller, one for the heuristic from `late_epoch` on, and static networks of the size that this grew.

    A network that is planted before the first epoch is a static one by another name, so what is grown later stands
    beside: its architecture from scratch, the host with all layers widened, and with the one layer widened of which
    validation thinks best.
    """
    late = Heuristic(HeuristicSettings(first_epoch=late_epoch))
    ways = {name: make_controller(name) for name in names} | {f"{late.name} from epoch {late_epoch} on": late}
    widened = widenings(task, 0)
    total = len(seeds) * (len(ways) + 1 + len(widened))
    rows: list[Row] = []

    def run(label: str, episodes: Callable[[], list[EpisodeResult]]) -> Row:
        progress(f"{task.name}: {label}", len(rows) * len(seeds), total)
        rows.append(Row(label, tuple(episodes())))
        return rows[-1]

    for label, way in ways.items():
        grown = run(label, partial(run_episodes, task, way, seeds, settings)).results
    run("same architecture from scratch", partial(run_from_scratch, task, grown, seeds, settings))
    for which in widened:
        run(f"{which} widened", partial(run_widened, task, which, grown, seeds, settings))
    single = rows[-len(widened) + 1 :] if len(widened) > 1 else []
    best = _best_on_validation(single) if single else None
    return [row for row in rows if row not in single or row is best]


def run_from_scratch(
    task: Task, grown: Sequence[EpisodeResult], seeds: Sequence[int], settings: EpisodeSettings | None = None
) -> list[EpisodeResult]:
    """What was grown from each seed, all of it there from the first step, trained for as long from the same seed."""

    def run(kept: tuple[Kept, ...], alike: list[int]) -> list[EpisodeResult]:
        fossils = {seed.slot_id: seed.blueprint for seed in kept}
        return run_episodes(task, Never(), alike, settings, fossils=fossils)

    return _by_group([result.kept for result in grown], seeds, run)


def run_widened(
    task: Task,
    which: str,
    grown: Sequence[EpisodeResult],
    seeds: Sequence[int],
    settings: EpisodeSettings | None = None,
) -> list[EpisodeResult]:
    """The host, widened to at least the grown size, trained for as long; what it adds pays rent like a seed."""
    host = grown[0]

    def run(target: int, alike: list[int]) -> list[EpisodeResult]:
        wide = replace(task, host_settings=widenings(task, target)[which])
        return [
            replace(
                result,
                host_params=host.host_params,
                added_params=result.host_params - host.host_params,
                host_flops=host.host_flops,
                added_flops=result.host_flops - host.host_flops,
            )
            for result in run_episodes(wide, Never(), alike, settings)
        ]

    return _by_group([result.host_params + result.added_params for result in grown], seeds, run)


def _by_group(
    keys: Sequence[Key], seeds: Sequence[int], run: Callable[[Key, list[int]], list[EpisodeResult]]
) -> list[EpisodeResult]:
    """What `run` gives for each key and the seeds that have it, in the order of the seeds."""
    done: dict[int, EpisodeResult] = {}
    for key in dict.fromkeys(keys):
        alike = [seed for seed, other in zip(seeds, keys, strict=True) if other == key]
        done |= zip(alike, run(key, alike), strict=True)
    return [done[seed] for seed in seeds]


def widenings(task: Task, target_params: int) -> dict[str, HostSettings]:
    """Settings of hosts with at least `target_params` parameters: all layers wider, and each single layer, by name.

    Widths rise by as little as needed; that of a transformer, by its heads.
    """
    key = {"conv1d": "channels", "conv2d": "channels", "mlp": "widths", "transformer": "width"}.get(task.host)
    widths = task.host_settings.get(key or "")
    if key is None or widths is None:
        raise InputError(f"task {task.name!r} does not set the widths of its host {task.host!r}")
    if isinstance(widths, int):
        return {"all layers": _widened(task, target_params, key, lambda by: widths + by * _heads(task))}
    raised = {"all layers": range(len(widths)), **{f"layer {i + 1}": range(i, i + 1) for i in range(len(widths))}}
    return {name: _widened(task, target_params, key, _raise(widths, layers)) for name, layers in raised.items()}


def _heads(task: Task) -> int:
    heads = task.host_settings["heads"]
    assert isinstance(heads, int)
    return heads


def _raise(widths: tuple[int, ...], layers: range) -> Callable[[int], tuple[int, ...]]:
    return lambda by: tuple(width + by * (layer in layers) for layer, width in enumerate(widths))


def _widened(task: Task, target_params: int, key: str, raised: Callable[[int], int | tuple[int, ...]]) -> HostSettings:
    """The settings with widths raised by the smallest number that gives enough parameters."""
    for by in itertools.count():
        settings = {**task.host_settings, key: raised(by)}
        if sum(p.numel() for p in build_host(task.host, **settings).parameters()) >= target_params:
            return settings
    raise AssertionError("unreachable: widths rise without end")


@dataclass(frozen=True, slots=True)
class RankedSchedule:
    """A schedule and its mean objective on validation over the tasks and the seeds it was judged on."""

    plantings: tuple[Planting, ...]
    objective: float
    episodes: int


def search_schedules(
    tasks: Sequence[Task], num_candidates: int, first_seed: int, progress: Progress
) -> list[RankedSchedule]:
    """The best constant action sequences on `tasks` together, best first; doing nothing is always among them.

    Random schedules, judged on ever more seeds as ever fewer are left. Selection reads validation only.
    """
    dice = random.Random(first_seed)
    num_slots = min(len(task.build_host().slot_sites) for task in tasks)
    alive: dict[tuple[Planting, ...], list[float]] = {(): []}
    while len(alive) < num_candidates:
        alive[_random_plantings(dice, num_slots)] = []
    for seeds in _HALVINGS:
        for done, (plantings, scores) in enumerate(alive.items()):
            progress(f"schedules on {seeds} seeds", done, len(alive))
            new = range(first_seed + len(scores) // len(tasks), first_seed + seeds)
            for task in tasks:
                results = run_episodes(task, Schedule(plantings), new, test=False)
                scores += [result.val_objective for result in results]
        ranked = sorted(alive.items(), key=lambda item: -sum(item[1]) / len(item[1]))
        if seeds != _HALVINGS[-1]:
            kept = ranked[: max(2, len(ranked) // 3)]
            alive = dict(kept) if () in dict(kept) else {**dict(kept), (): alive[()]}
    return [RankedSchedule(plantings, sum(scores) / len(scores), len(scores)) for plantings, scores in ranked]


def _random_plantings(dice: random.Random, num_slots: int) -> tuple[Planting, ...]:
    """One to all slots planted, each at its own step; blueprints that do not fit are passed over at run time."""
    slots = sorted(dice.sample(range(num_slots), dice.randint(1, num_slots)))
    steps = dice.sample(range(_LAST_PLANTING_STEP), len(slots))
    return tuple(
        Planting(step, slot, dice.randrange(num_blueprints())) for step, slot in zip(steps, slots, strict=True)
    )
