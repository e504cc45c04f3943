"""`esper search`: the best plan of each task, by playing plans."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from esper.cli.output import (
    check_count,
    check_not_empty,
    check_seed,
    check_writable,
    make_console,
    make_folder,
    print_table,
    say,
    write_json,
)
from esper.leyline import InputError, printable, unknown_name

if TYPE_CHECKING:
    from esper.simic.search import SearchJob, TaskFindings

_LARGEST_SEED = 1_000_000


@dataclass(frozen=True, slots=True)
class Search:
    """Search for the best plan of each task: what to plant where, when, and how it joins.

    Plays plans that may be the best (Thompson sampling), then the best ones again from fresh seeds. Gains are in points
    of the objective on validation, relative to the host that is left alone. A search that was stopped is resumed.
    """

    task: tuple[str, ...] = ("mnist1d", "mnist1d-shuffled")
    """Tasks to search on; `training`, `validation` and `held-out` stand for the tasks of these collections."""
    out: Path = Path("runs/search")
    """Folder for what was played, a file for each task."""
    episodes: int = 256
    """Episodes of each task, those of the finalists not counted."""
    price: tuple[float, ...] = (0.01, 0.03, 0.1)
    """Prices at which plans are wanted: cost of doubling the host's parameters, in units of score."""
    final_seeds: int = 32
    """Fresh seeds from which the best plans are played again."""
    max_seeds: int = 3
    """Most seeds of a plan."""
    budget_params: int | None = None
    """Most parameters that a plan may add; no limit by default."""
    epochs: int | None = None
    """Epochs that hosts train for; the task's default if not given."""
    batches_per_epoch: int | None = None
    """Minibatches per epoch; the task's default if not given."""
    seed: int = 0
    """Seed of the search; other seeds play other plans in other episodes."""
    executor: str = "auto"
    """loop, stacked, native, or auto, which times them briefly and takes the fastest."""
    workers: int = 1
    """Processes, each of which searches on a task of its own."""
    json: Path | None = None
    """Write what was found to this file."""

    def run(self) -> bool:
        import torch

        job = self._job()
        make_folder("--out", self.out)
        check_writable(self.json)  # which may be in that folder
        torch.set_num_threads(1)
        found = self._search(job)
        self._print(found)
        write_json(self.json, {"tasks": [_as_json(row) for row in found]})
        say(f"What was played is in {self.out}.")
        return True

    def _job(self) -> "SearchJob":
        """What is to be searched, checked before anything is written."""
        from esper.kasmina import UNLIMITED
        from esper.simic.search import SearchJob, SearchSettings
        from esper.tasks import expand_collections, find_task
        from esper.tolaria import EpisodeSettings, executor_names

        check_not_empty("--task", self.task)
        check_count("--workers", self.workers)
        check_seed(self.seed)
        if self.seed > _LARGEST_SEED:
            raise InputError(f"--seed must be at most {_LARGEST_SEED:,}; got {self.seed}")
        if self.budget_params is not None:
            check_count("--budget-params", self.budget_params, least=0, most=UNLIMITED)
        if self.executor not in executor_names():
            raise unknown_name("executor", self.executor, executor_names())
        tasks = tuple(dict.fromkeys(find_task(name).name for name in expand_collections(self.task)))
        settings = SearchSettings(
            episodes=self.episodes,
            max_seeds=self.max_seeds,
            prices=self.price,
            final_seeds=self.final_seeds,
            seed=self.seed,
        )
        budget = UNLIMITED if self.budget_params is None else self.budget_params
        episode = EpisodeSettings(
            length=self.epochs, batches_per_epoch=self.batches_per_epoch, budget=budget, merit=False
        )
        return SearchJob(tasks, self.out, settings, episode, self.executor)

    def _search(self, job: "SearchJob") -> "list[TaskFindings]":
        from rich.markup import escape
        from rich.progress import Progress, TaskID

        from esper.simic.search import search_tasks

        with Progress(console=make_console(stderr=True)) as shown:
            bars: dict[str, TaskID] = {}

            def progress(task: str, done: int, total: int) -> None:
                if task not in bars:
                    bars[task] = shown.add_task(escape(printable(task)))
                shown.update(bars[task], completed=done, total=total)

            found = {row.task: row for row in search_tasks(job, self.workers, progress)}
        return [found[task] for task in job.tasks]

    def _print(self, found: "list[TaskFindings]") -> None:
        rows = []
        for row in found:
            for place, finding in enumerate(row.findings):
                task = (row.task, f"{row.never:.1f}") if place == 0 else ("", "")
                gain = f"{finding.expected:+.1f}" if finding.plan else ""
                rows.append(
                    (
                        *task,
                        f"{finding.price:g}",
                        finding.described.replace("; ", "\n"),
                        f"+{finding.added_params:,}",
                        gain,
                    )
                )
        print_table(("task", "left alone", "price", "best plan", "parameters", "gain"), rows)


def _as_json(row: "TaskFindings") -> dict[str, object]:
    from esper.simic.search import show_plan

    return {
        "task": row.task,
        "never": row.never,
        "host_params": row.host_params,
        "slots": row.slots,
        "episodes": row.episodes,
        "scales": row.scales,
        "findings": [
            {
                "price": finding.price,
                "plan": show_plan(finding.plan),
                "described": finding.described,
                "added_params": finding.added_params,
                "expected_gain": finding.expected,
            }
            for finding in row.findings
        ],
    }
