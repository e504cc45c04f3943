"""What growing brings: controllers and static networks on the same seeds, and the best open-loop schedule."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from esper.api.statistics import Estimate
from esper.kasmina import build_host, num_blueprints
from esper.leyline import InputError
from esper.tamiyo import Never, Planting, Schedule, make_controller, run_episode, run_episodes
from esper.tolaria import EpisodeResult, Task

Progress = Callable[[str, int, int], None]
"""Called with what is being run, how many episodes are done and how many there are."""

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


def compare(task: Task, names: Sequence[str], seeds: Sequence[int], progress: Progress) -> list[Row]:
    """A row per controller; then two static networks as large as what the last controller grew."""
    total = len(seeds) * (len(names) + 2)
    rows: list[Row] = []
    for name in names:
        progress(f"{task.name}: {name}", len(rows) * len(seeds), total)
        rows.append(Row(name, tuple(run_episodes(task, make_controller(name), seeds))))
    grown = rows[-1].results
    # Every seed has an architecture of its own here, so these run one by one.
    for label, run in (("same architecture from scratch", run_from_scratch), ("wider host from scratch", run_widened)):
        results = []
        for index, (seed, result) in enumerate(zip(seeds, grown, strict=True)):
            progress(f"{task.name}: {label}", len(rows) * len(seeds) + index, total)
            results.append(run(task, result, seed))
        rows.append(Row(label, tuple(results)))
    return rows


def run_from_scratch(task: Task, grown: EpisodeResult, seed: int) -> EpisodeResult:
    """The grown architecture, all of it there from the first step, trained for as long."""
    return run_episode(task, Never(), seed, fossils={kept.slot_id: kept.blueprint for kept in grown.kept})


def run_widened(task: Task, grown: EpisodeResult, seed: int) -> EpisodeResult:
    """The host, widened to at least the grown size, trained for as long; what it adds pays rent like a seed."""
    target = grown.host_params + grown.added_params
    wide = replace(task, host_settings=widened_settings(task, target))
    result = run_episode(wide, Never(), seed)
    return replace(
        result,
        host_params=grown.host_params,
        added_params=result.host_params - grown.host_params,
        host_flops=grown.host_flops,
        added_flops=result.host_flops - grown.host_flops,
    )


def widened_settings(task: Task, target_params: int) -> dict[str, int | tuple[int, ...]]:
    """Settings of the host with every width raised by as little as gives it at least `target_params` parameters."""
    key = {"conv1d": "channels", "conv2d": "channels", "mlp": "widths"}.get(task.host)
    widths = task.host_settings.get(key or "")
    if key is None or not isinstance(widths, tuple):
        raise InputError(f"task {task.name!r} does not set the widths of its host {task.host!r}")
    settings = dict(task.host_settings)
    while sum(p.numel() for p in build_host(task.host, **settings).parameters()) < target_params:
        widths = tuple(width + 1 for width in widths)
        settings[key] = widths
    return settings


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule and its mean objective on validation over the tasks and the seeds it was judged on."""

    plantings: tuple[Planting, ...]
    objective: float
    episodes: int


def search_schedules(
    tasks: Sequence[Task], num_candidates: int, first_seed: int, progress: Progress
) -> list[Candidate]:
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
    return [Candidate(plantings, sum(scores) / len(scores), len(scores)) for plantings, scores in ranked]


def _random_plantings(dice: random.Random, num_slots: int) -> tuple[Planting, ...]:
    """One to all slots planted, each at its own step; blueprints that do not fit are passed over at run time."""
    slots = sorted(dice.sample(range(num_slots), dice.randint(1, num_slots)))
    steps = dice.sample(range(_LAST_PLANTING_STEP), len(slots))
    return tuple(
        Planting(step, slot, dice.randrange(num_blueprints())) for step, slot in zip(steps, slots, strict=True)
    )
