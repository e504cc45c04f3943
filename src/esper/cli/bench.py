"""`esper bench`: the measurements in the documentation."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from esper.cli.bench_quality import Quality
from esper.cli.options import EpisodeOptions
from esper.cli.output import check_count, check_not_empty, check_seed, check_writable, make_console, write_json

if TYPE_CHECKING:
    from esper_lab.timing import Progress

_PAIR = ("mnist1d", "mnist1d-shuffled")


@dataclass(frozen=True, slots=True)
class Growth(EpisodeOptions):
    """Compare grown networks with static baselines on the test split, with the same seeds for all.

    The baselines are as large as what the heuristic grows from --late-epoch on.
    """

    tasks: tuple[str, ...] = _PAIR
    """Tasks to run."""
    controllers: tuple[str, ...] = ("never", "heuristic")
    """Controllers to compare, in addition to the heuristic from --late-epoch on."""
    late_epoch: int = 2
    """First epoch in which the second row of the heuristic plants; by 2 the learning rate has warmed up."""
    seeds: int = 16
    """How many seeds; every row uses the same ones."""
    seed: int = 0
    """First seed."""
    json: Path | None = None
    """Write the numbers to this file too."""

    def run(self) -> bool:
        from esper.tamiyo import make_controller
        from esper.tasks import find_task
        from esper_lab.growth import compare, print_margins, print_rows

        check_writable(self.json)
        check_count("--seeds", self.seeds)
        check_seed(self.seed, self.seeds)
        check_not_empty("--tasks", self.tasks)
        check_not_empty("--controllers", self.controllers)
        for name in self.controllers:
            make_controller(name)
        settings = self.episode_settings()
        tasks = [find_task(name) for name in self.tasks]
        seeds = range(self.seed, self.seed + self.seeds)
        console = make_console()
        report: dict[str, object] = {}
        for task in tasks:
            with _progress() as progress:
                rows = compare(task, self.controllers, seeds, progress, settings, self.late_epoch)
            print_rows(task.name, rows, console)
            margins = print_margins(len(self.controllers), rows, console)
            report[task.name] = {row.name: row.numbers() for row in rows} | margins
        write_json(self.json, report)
        return True


@dataclass(frozen=True, slots=True)
class Oracle:
    """Search for the best open-loop schedule for one or several tasks, and test it on held-out seeds."""

    tasks: tuple[str, ...] = ("mnist1d",)
    """Tasks that share the schedule."""
    candidates: int = 48
    """Random schedules that the search starts from."""
    seed: int = 100
    """First seed of the search; the report uses seeds from 0."""
    report_seeds: int = 5
    """Seeds on which the best schedule is reported, on the test split."""
    json: Path | None = None
    """Write the numbers to this file too."""

    def run(self) -> bool:
        from rich import box
        from rich.table import Table

        from esper.tamiyo import Schedule, run_episode
        from esper.tasks import find_task
        from esper_lab.growth import Row, print_rows, search_schedules

        check_writable(self.json)
        check_count("--candidates", self.candidates)
        check_count("--report-seeds", self.report_seeds)
        check_seed(self.seed)
        check_not_empty("--tasks", self.tasks)
        tasks = [find_task(name) for name in self.tasks]
        with _progress() as progress:
            found = search_schedules(tasks, self.candidates, self.seed, progress)
        table = Table("step:slot:blueprint", "validation objective", "episodes", box=box.SIMPLE)
        for candidate in found[:5]:
            shown = " ".join(str(planting) for planting in candidate.plantings) or "nothing"
            table.add_row(shown, f"{100 * candidate.objective:.1f}", str(candidate.episodes))
        console = make_console()
        console.print(table)
        best = Schedule(found[0].plantings)
        rows = {}
        for task in tasks:
            rows[task.name] = Row("oracle", tuple(run_episode(task, best, seed) for seed in range(self.report_seeds)))
            print_rows(task.name, [rows[task.name]], console)
        report = {name: row.numbers() for name, row in rows.items()}
        write_json(self.json, {"schedule": [str(planting) for planting in best.plantings], "test": report})
        return True


@contextmanager
def _progress() -> "Iterator[Progress]":
    """A progress bar on stderr; only the table goes to stdout."""
    import torch
    from rich.markup import escape
    from rich.progress import Progress as Bar

    torch.set_num_threads(1)
    with Bar(console=make_console(stderr=True), transient=True) as bar:
        line = bar.add_task("starting", total=None)
        yield lambda what, done, total: bar.update(line, description=escape(what), completed=done, total=total)


@dataclass(frozen=True, slots=True)
class Speed:
    """Time host training against a bare PyTorch loop, a whole step, workers, and one PPO update.

    The update is compared with sb3-contrib's RecurrentPPO. CPU-seconds of one thread; takes about six minutes.
    """

    repeats: int = 3
    """Interleaved repeats; medians are shown."""
    batch_size: int = 32
    """Samples per minibatch of a host."""
    quick: bool = False
    """Only check in a few seconds that everything runs; the numbers mean nothing."""
    json: Path | None = None
    """Write the numbers to this file too."""

    def run(self) -> bool:
        from esper_lab.speed import measure_speed, print_speed
        from esper_lab.workload import SpeedSettings, quick_settings

        check_writable(self.json)
        check_count("--repeats", self.repeats)
        check_count("--batch-size", self.batch_size)
        settings = quick_settings(self.batch_size) if self.quick else SpeedSettings(self.repeats, self.batch_size)
        with _progress() as progress:
            report = measure_speed(settings, progress)
        print_speed(report, make_console())
        write_json(self.json, report)
        return True


@dataclass(frozen=True, slots=True)
class Bench:
    """Reproduce the measurements in the documentation."""

    what: (
        Annotated[Quality, tyro.conf.subcommand("quality")]
        | Annotated[Growth, tyro.conf.subcommand("growth")]
        | Annotated[Oracle, tyro.conf.subcommand("oracle")]
        | Annotated[Speed, tyro.conf.subcommand("speed")]
    )

    def run(self) -> bool:
        return self.what.run()
