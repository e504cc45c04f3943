"""`esper bench`: measurements that the documentation quotes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from esper.cli.output import check_count, check_seed, check_writable, make_console, write_json
from esper.leyline import DEFAULT_PRICE, InputError

if TYPE_CHECKING:
    from esper_lab.timing import Progress

_PAIR = ("mnist1d", "mnist1d-shuffled")


@dataclass(frozen=True, slots=True)
class Growth:
    """Compare ways of growing, and networks that are not grown, on the same seeds and the test split.

    The static ones are as large as what the heuristic grows from --late-epoch on.
    """

    tasks: tuple[str, ...] = _PAIR
    """Tasks to run."""
    controllers: tuple[str, ...] = ("never", "heuristic")
    """Controllers to compare, beside the heuristic from --late-epoch on."""
    late_epoch: int = 2
    """Before this epoch, when the rate of hosts has warmed up, a second row of the heuristic plants nothing."""
    seeds: int = 16
    """How many seeds; every row uses the same ones."""
    seed: int = 0
    """The first of the seeds."""
    price: float = DEFAULT_PRICE
    """What adding as many parameters as the host has costs."""
    epochs: int | None = None
    """Epochs that hosts train for; the task's own number if not given."""
    batches_per_epoch: int | None = None
    """Minibatches in an epoch; the task's own number if not given."""
    batch_size: int | None = None
    """Samples in a minibatch; the task's own number if not given."""
    host_lr: float | None = None
    """Learning rate of hosts; the task's own if not given."""
    seed_lr_scale: float | None = None
    """Learning rate of seeds relative to their host's; the task's own number if not given."""
    json: Path | None = None
    """Write the numbers to this file too."""

    def run(self) -> bool:
        """Run, and print a table per task."""
        from esper.tamiyo import make_controller
        from esper.tasks import find_task
        from esper.tolaria import EpisodeSettings
        from esper_lab.growth import compare, print_margins, print_rows

        check_writable(self.json)
        check_count("--seeds", self.seeds)
        check_seed(self.seed)
        check_seed(self.seed + self.seeds)
        _check_not_empty("--tasks", self.tasks)
        _check_not_empty("--controllers", self.controllers)
        for name in self.controllers:
            make_controller(name)
        settings = EpisodeSettings(
            length=self.epochs,
            price=self.price,
            batches_per_epoch=self.batches_per_epoch,
            batch_size=self.batch_size,
            host_lr=self.host_lr,
            seed_lr_scale=self.seed_lr_scale,
        )
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
    """Search the best constant action sequence on one task, or one sequence for several tasks together."""

    tasks: tuple[str, ...] = ("mnist1d",)
    """Tasks that the schedule has to serve."""
    candidates: int = 48
    """How many random schedules the search begins with."""
    seed: int = 100
    """The first seed of the search; the report uses seeds from 0."""
    report_seeds: int = 5
    """How many seeds the best schedule is reported on, on the test split."""
    json: Path | None = None
    """Write the numbers to this file too."""

    def run(self) -> bool:
        """Search, and print the best schedules and what the first is worth on fresh seeds."""
        from rich import box
        from rich.table import Table

        from esper.tamiyo import Schedule, run_episode
        from esper.tasks import find_task
        from esper_lab.growth import Row, print_rows, search_schedules

        check_writable(self.json)
        check_count("--candidates", self.candidates)
        check_count("--report-seeds", self.report_seeds)
        check_seed(self.seed)
        _check_not_empty("--tasks", self.tasks)
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


def _check_not_empty(option: str, values: tuple[str, ...]) -> None:
    if not values:
        raise InputError(f"{option} needs at least one name")


@contextmanager
def _progress() -> "Iterator[Progress]":
    """A progress line with time left on the error stream; the table alone goes to the output."""
    import torch
    from rich.markup import escape
    from rich.progress import Progress as Bar

    torch.set_num_threads(1)
    with Bar(console=make_console(stderr=True), transient=True) as bar:
        line = bar.add_task("starting", total=None)
        yield lambda what, done, total: bar.update(line, description=escape(what), completed=done, total=total)


@dataclass(frozen=True, slots=True)
class Speed:
    """Time the training of hosts beside a bare PyTorch loop, a whole step, and one update of the learner.

    All in CPU-seconds with one thread; about six minutes. The update stands beside sb3-contrib's RecurrentPPO.
    """

    repeats: int = 3
    """Interleaved repeats; medians are shown."""
    batch_size: int = 32
    """Samples in a minibatch of a host."""
    quick: bool = False
    """Only see whether everything runs, in seconds."""
    json: Path | None = None
    """Write the numbers to this file too."""

    def run(self) -> bool:
        """Measure, and print the tables."""
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
    """Measure what the documentation quotes."""

    what: (
        Annotated[Growth, tyro.conf.subcommand("growth")]
        | Annotated[Oracle, tyro.conf.subcommand("oracle")]
        | Annotated[Speed, tyro.conf.subcommand("speed")]
    )

    def run(self) -> bool:
        """Run the chosen measurement."""
        return self.what.run()
