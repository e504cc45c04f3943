"""`esper evaluate`: how good a controller is, on the test split."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.cli.options import EpisodeOptions
from esper.cli.output import check_count, check_not_empty, check_seed, check_writable, make_console, say, write_json
from esper.leyline import printable, unknown_name

if TYPE_CHECKING:
    from esper.api import Evaluation
    from esper.tamiyo import Controller
    from esper.tolaria import EpisodeSettings

_WIDE = 90
"""Columns of a terminal in which a mean and its interval fit side by side; in narrower ones the interval goes below."""


@dataclass(frozen=True, slots=True)
class Evaluate(EpisodeOptions):
    """Compare controllers on the test split, deterministically and with the same seeds for all.

    Prints accuracy, parameters and objective with 95 % bootstrap intervals.
    """

    controller: tuple[str, ...] = ("never", "heuristic")
    """never, random, schedule, heuristic, rule, shipped, a run folder, a checkpoint or a controller file; the first is
    the baseline."""
    task: tuple[str, ...] = ("mnist1d", "mnist1d-shuffled")
    """Tasks to evaluate on; see `esper tasks`."""
    episodes: int = 10
    """Episodes of each task."""
    seed: int = 0
    """Seed of the first episode; the others follow it."""
    executor: str = "auto"
    """loop, stacked, native, or auto, which times them briefly and takes the fastest."""
    json: Path | None = None
    """Write the numbers to this file."""
    picture: Path | None = None
    """Plot the comparison to this file, with the learning curve if a run folder is among the controllers."""

    def run(self) -> bool:
        import torch

        from esper.api import find_controller

        self._check()
        learned = self._learned()
        settings = self.episode_settings()
        controllers = {name: find_controller(name) for name in self.controller}
        torch.set_num_threads(1)
        done = self._evaluate(settings, controllers)
        self._print(done)
        told = [self._numbers(name, row, rows) for rows in done.values() for name, row in rows.items()]
        write_json(self.json, _as_json(told))
        if self.picture is not None:
            self._draw(done, learned, self.picture)
        return True

    def _check(self) -> None:
        from esper.karn import check_picture
        from esper.tasks import find_task
        from esper.tolaria import executor_names

        check_writable(self.json, self.picture)
        check_count("--episodes", self.episodes)
        check_seed(self.seed, self.episodes)
        check_not_empty("--task", self.task)
        check_not_empty("--controller", self.controller)
        for task in self.task:
            find_task(task)
        if self.executor not in executor_names():
            raise unknown_name("executor", self.executor, executor_names())
        if self.picture is not None:
            check_picture(self.picture)

    def _learned(self) -> "Mapping[str, Any]":
        """The summary of the first run among the controllers, if it is to be drawn and there is one."""
        from esper.karn import check_summary
        from esper.simic.training import RunFolder

        for name in self.controller if self.picture is not None else ():
            folder = RunFolder(Path(name))
            summary = folder.read_summary()
            if summary is not None:
                check_summary(summary, folder.summary)
                return summary
        return {}

    def _evaluate(
        self, settings: "EpisodeSettings", controllers: "dict[str, Controller]"
    ) -> "dict[str, dict[str, Evaluation]]":
        """By task and controller."""
        from rich.markup import escape
        from rich.progress import Progress

        from esper.api import evaluate

        seeds = range(self.seed, self.seed + self.episodes)
        done: dict[str, dict[str, Evaluation]] = {}
        with Progress(console=make_console(stderr=True), transient=True) as progress:
            for task in self.task:
                for name, controller in controllers.items():
                    bar = progress.add_task(escape(printable(f"{task}: {name}")), total=self.episodes)
                    row = evaluate(controller, task, seeds, settings=settings, executor=self.executor)
                    done.setdefault(task, {})[name] = row
                    progress.update(bar, completed=self.episodes)
        return done

    def _print(self, done: "dict[str, dict[str, Evaluation]]") -> None:
        from rich import box
        from rich.table import Table

        first, console = self.controller[0], make_console()
        numeric = ("test accuracy", "objective", "parameters", f"minus {_short(first)}")
        for task, rows in done.items():
            table = Table("controller", title=task, title_justify="left", box=box.SIMPLE)
            for head in numeric:
                table.add_column(head, no_wrap=True)
            for name, row in rows.items():
                gain = "" if name == first else row.gain_over(rows[first]).show()
                cells = [row.test_accuracy.show(), row.objective.show(), f"{row.parameters.mean:,.0f}", gain]
                if console.width < _WIDE:
                    cells = [cell.replace(" (", "\n(", 1) for cell in cells]
                table.add_row(_short(name), *cells)
            console.print(table)
        console.print(f"minus {_short(first)}: paired difference of objectives. In brackets: 95 % intervals.")

    def _draw(self, done: "dict[str, dict[str, Evaluation]]", learned: "Mapping[str, Any]", path: Path) -> None:
        from esper.karn import draw_learning

        first = self.controller[0]
        compared = {
            task: {_short(name): row.gain_over(rows[first]).interval for name, row in rows.items()}
            for task, rows in done.items()
        }
        draw_learning(path, learned.get("history", ()), learned.get("baselines"), compared, _short(first))
        say(f"Picture: {path}")

    def _numbers(self, name: str, row: "Evaluation", rows: "dict[str, Evaluation]") -> "dict[str, object]":
        first = self.controller[0]
        compared = {} if name == first else {f"gain_over_{first}": row.gain_over(rows[first]).to_dict()}
        return {**row.to_dict(), "controller": name, **compared}


def _short(controller: str) -> str:
    """A name that fits a picture: of a path, its last part."""
    return printable(Path(controller).name)


def _as_json(numbers: "list[dict[str, object]]") -> object:
    """One controller on one task gives its numbers themselves; more give a list of them."""
    return numbers[0] if len(numbers) == 1 else {"evaluations": numbers}
