"""`esper bench`: measurements that the documentation quotes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from esper.cli.output import check_count, check_seed, check_writable, make_console, write_json
from esper.cli.speed_tables import print_speed
from esper.leyline import DEFAULT_PRICE, InputError

if TYPE_CHECKING:
    from esper.api import Progress, Row

_QUICK_LSTM = 16
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
        from esper.api import compare
        from esper.tamiyo import make_controller
        from esper.tolaria import EpisodeSettings, find_task

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
        report: dict[str, object] = {}
        for task in tasks:
            with _progress() as progress:
                rows = compare(task, self.controllers, seeds, progress, settings, self.late_epoch)
            _print_rows(task.name, rows)
            report[task.name] = {row.name: _row_numbers(row) for row in rows} | _print_margin(self.controllers, rows)
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

        from esper.api import Row, search_schedules
        from esper.tamiyo import Schedule, run_episode
        from esper.tolaria import find_task

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
        make_console().print(table)
        best = Schedule(found[0].plantings)
        rows = {}
        for task in tasks:
            rows[task.name] = Row("oracle", tuple(run_episode(task, best, seed) for seed in range(self.report_seeds)))
            _print_rows(task.name, [rows[task.name]])
        report = {name: _row_numbers(row) for name, row in rows.items()}
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


def _print_rows(title: str, rows: "list[Row]") -> None:
    from rich import box
    from rich.table import Table

    table = Table("", "test accuracy, %", "objective", "parameters", "gain over the first", title=title, box=box.SIMPLE)
    for row in rows:
        gain = row.gain_over(rows[0])
        table.add_row(
            row.name,
            row.test_score.show(),
            row.test_objective.show(),
            f"{row.parameters.mean:,.0f}",
            "" if row is rows[0] else gain.show(),
        )
    make_console().print(table)


def _print_margin(controllers: tuple[str, ...], rows: "list[Row]") -> dict[str, dict[str, object]]:
    """Say how what is grown does beside the best widened host, by objective on validation; return it as numbers."""
    widened = [row for row in rows if row.name.endswith("widened")]
    best = max(widened, key=lambda row: sum(result.val_objective for result in row.results))
    numbers: dict[str, dict[str, object]] = {}
    for row in rows[: len(controllers) + 1]:
        if row.name == "never":
            continue
        score, objective = row.score_gain_over(best), row.gain_over(best)
        make_console().print(
            f"{row.name} minus {best.name}: test accuracy {score.show()}, objective {objective.show()}", highlight=False
        )
        numbers[f"{row.name} minus {best.name}"] = {"accuracy": score.to_dict(), "objective": objective.to_dict()}
    return numbers


def _row_numbers(row: "Row") -> dict[str, object]:
    estimates = {"test_accuracy": row.test_score, "objective": row.test_objective, "parameters": row.parameters}
    return {name: asdict(estimate) for name, estimate in estimates.items()}


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
        from dataclasses import replace

        from esper.api.speed import DEFAULT, QUICK, bench_growth, bench_host_steps, bench_whole_step
        from esper.simic.bench import LSTM_SIZES, bench_ppo_update

        check_writable(self.json)
        check_count("--repeats", self.repeats)
        check_count("--batch-size", self.batch_size)
        settings = replace(QUICK if self.quick else DEFAULT, batch_size=self.batch_size)
        if not self.quick:
            settings = replace(settings, repeats=self.repeats)
        report: dict[str, Any] = {}
        with _progress() as progress:
            for part in (bench_host_steps, bench_whole_step, bench_growth):
                report |= part(settings, progress)
            progress("updates of the learner, a minute", 0, 1)
            sizes = (_QUICK_LSTM,) if self.quick else LSTM_SIZES
            report |= bench_ppo_update(sizes, repeats=1 if self.quick else self.repeats)
        report["setting"] |= {"batch_size": self.batch_size, "optimizer": "AdamW, fused; host and seeds clipped apart"}
        print_speed(report)
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
