"""`esper bench quality`: does growing help, and does learning to grow?"""

import json
import multiprocessing
from collections.abc import Generator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.cli.output import check_count, check_not_empty, check_seed, check_writable, make_console, say, write_json
from esper.leyline import DamagedFileError, InputError, printable, unknown_name

if TYPE_CHECKING:
    from esper_lab.quality import QualitySettings, Table


@dataclass(frozen=True, slots=True)
class Quality:
    """Compare controllers with each other, with static networks and with random search over these, on many tasks.

    All rows of a task have the same seeds. Scores are of the test split; whatever is chosen, is chosen on validation.
    With --json a run that was stopped goes on where it was: tasks that are in the file are not played again.
    """

    tasks: tuple[str, ...] = ("held-out",)
    """Tasks, or collections of them: training, validation, held-out. Those whose data is not here are left out."""
    controllers: tuple[str, ...] = ("never", "random", "schedule", "heuristic", "rule")
    """Names, run folders or files. Gains are taken to the first."""
    subjects: tuple[str, ...] = ()
    """Those of them that the table is about, by default the last; differences are of each of these to all rows."""
    prices: tuple[float, ...] = (0.03, 0.01)
    """Prices of doubling the host's parameters, in units of score; each has a table."""
    seeds: int = 16
    """Seeds of each task."""
    seed: int = 90_000_000
    """The first of them."""
    static: int = 16
    """Static networks trained for the random search: host widths times kinds from the start. 0: none."""
    same_size: bool = True
    """Also train networks of the size that the first subject grew: the same architecture, and the host widened."""
    ablations: bool = False
    """Also play the first subject with its observations shuffled in time, its actions replayed on other seeds, and
    without merit."""
    plans: Path | None = None
    """Folder of `esper search`, whose best plan for each task is a row too."""
    search_episodes: int = 256
    """Episodes of that search."""
    search_final_seeds: int = 32
    """Final seeds of that search."""
    batches_per_epoch: int | None = None
    """Minibatches per epoch; each task's own number if not given."""
    workers: int = 2
    """Processes, each of which plays a task of its own."""
    json: Path | None = None
    """Write every number to this file, task by task."""
    picture: Path | None = None
    """Plot differences, and accuracy beside size, to this file."""

    def run(self) -> bool:
        from esper_lab.quality_report import as_data, compare_rows, draw_quality, print_comparison

        settings = self._checked()
        tables = self._played(settings)
        if not tables:
            raise InputError("the data of none of these tasks is here; see `esper tasks`")
        compared = {}
        for price in settings.prices:
            compared[str(price)] = compare_rows(_by_row(tables, str(price)), settings.subjects)
            title = f"price {price}: {len(tables)} tasks, {settings.seeds} seeds each, test split"
            print_comparison(title, compared[str(price)], settings.subjects, make_console())
        self._write(settings, tables, {price: as_data(rows) for price, rows in compared.items()})
        if self.picture is not None:
            draw_quality(compared, settings.subjects[0], self.picture)
            say(f"Picture: {self.picture}")
        return True

    def _checked(self) -> "QualitySettings":
        from esper.api import find_controller
        from esper.karn import check_picture
        from esper.simic.search import SearchSettings
        from esper_lab.quality import QualitySettings

        check_writable(self.json, self.picture)
        for option, count in (("--seeds", self.seeds), ("--workers", self.workers)):
            check_count(option, count)
        check_count("--static", self.static, least=0)
        check_seed(self.seed, self.seeds)
        for option, names in (("--tasks", self.tasks), ("--controllers", self.controllers)):
            check_not_empty(option, names)
        check_not_empty("--prices", [str(price) for price in self.prices])
        if self.picture is not None:
            check_picture(self.picture)
        settings = QualitySettings(
            tuple(dict.fromkeys(self.controllers)),
            tuple(dict.fromkeys(self.subjects)) or self.controllers[-1:],
            tuple(dict.fromkeys(self.prices)),
            self.seeds,
            self.seed,
            self.static,
            self.same_size,
            self.ablations,
            self.plans,
            SearchSettings(episodes=self.search_episodes, final_seeds=self.search_final_seeds),
            self.batches_per_epoch,
        )
        for name in self.controllers:
            find_controller(name)
        for name in self.subjects:
            if name not in self.controllers:
                raise unknown_name("subject", name, self.controllers)
        for price in self.prices:
            settings.episode(price)
        return settings

    def _played(self, settings: "QualitySettings") -> "dict[str, Table]":
        """The tables of all tasks whose data is here, in the order of the tasks."""
        from esper.tasks import expand_collections, find_task
        from esper_lab.quality import missing_data

        names = list(dict.fromkeys(find_task(name).name for name in expand_collections(self.tasks)))
        tables = self._read(settings)
        absent = {name: why for name in names if name not in tables and (why := missing_data(name))}
        for name, why in absent.items():
            say(f"{name} is left out: {why}")
        wanted = [name for name in names if name not in absent]
        with closing(_play([name for name in wanted if name not in tables], settings, self.workers)) as played:
            for name, table in played:
                tables[name] = table
                self._write(settings, tables, {})
        return {name: tables[name] for name in wanted}

    def _read(self, settings: "QualitySettings") -> "dict[str, Table]":
        """What an earlier run with the same settings has left in the file."""
        from esper_lab.quality import Row

        if self.json is None or not self.json.exists():
            return {}
        try:
            data = json.loads(self.json.read_text())
            played = data["settings"]
            tables = {
                task: {price: {name: Row.from_dict(row) for name, row in rows.items()} for price, rows in table.items()}
                for task, table in data["tasks"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DamagedFileError(f"{self.json} holds no comparison; name another file, or remove it") from None
        if played != _shown(settings):
            raise InputError(f"{self.json} holds a comparison with other settings; name another file, or remove it")
        return tables

    def _write(self, settings: "QualitySettings", tables: "Mapping[str, Table]", summary: Mapping[str, Any]) -> None:
        told = {
            task: {price: {name: row.to_dict() for name, row in rows.items()} for price, rows in table.items()}
            for task, table in tables.items()
        }
        write_json(self.json, {"settings": _shown(settings), "summary": summary, "tasks": told})


def _play(names: list[str], settings: "QualitySettings", workers: int) -> "Generator[tuple[str, Table], None, None]":
    """Each task in a process, with a progress bar."""
    from rich.markup import escape
    from rich.progress import Progress

    from esper_lab.quality import play_task

    # Spawned, so that what they compile and load does not pile up here.
    with (
        Progress(console=make_console(stderr=True), transient=True) as progress,
        ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool,
    ):
        bar = progress.add_task("tasks", total=len(names))
        waiting = {pool.submit(play_task, name, settings): name for name in names}
        try:
            for done in as_completed(waiting):
                progress.update(bar, advance=1, description=escape(printable(waiting[done])))
                yield waiting[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _shown(settings: "QualitySettings") -> dict[str, Any]:
    """What two comparisons must share to be one."""
    from dataclasses import asdict

    plain: dict[str, Any] = json.loads(json.dumps(asdict(settings), default=str))
    return plain


def _by_row(tables: "Mapping[str, Table]", price: str) -> dict[str, dict[str, Any]]:
    """By name of the row and task; rows that some task does not have are left out."""
    first, *others = (table[price] for table in tables.values())
    names = [name for name in first if all(name in other for other in others)]
    return {name: {task: table[price][name] for task, table in tables.items()} for name in names}
