"""Searches on many tasks: a file for each, saved after every batch, in this process or one task per worker."""

import hashlib
import multiprocessing
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esper.leyline import InputError, OtherCatalogueError, write_atomically
from esper.nissa.state_files import checked_keys, pack_state, read_state
from esper.simic.search.plans import PlanSpace
from esper.simic.search.search import Finalist, Finding, PlanSearch, SearchSettings
from esper.tasks import find_task
from esper.tolaria import EpisodeSettings

_VERSION = 1
_POLL_SECONDS = 1.0
_AGAIN = "search in another folder, or remove the file to begin that search anew"


@dataclass(frozen=True, slots=True)
class SearchJob:
    """What is to be searched, and where it is kept."""

    tasks: tuple[str, ...]
    folder: Path
    settings: SearchSettings
    episode: EpisodeSettings
    executor: str = "auto"

    def file(self, task: str) -> Path:
        """The state of the search on `task`, however its name is written; no two tasks share one."""
        task = find_task(task).name
        shown = re.sub(r"[^\w-]+", "-", task)[:60]
        return self.folder / f"{shown}-{hashlib.sha256(task.encode()).hexdigest()[:8]}.search"


@dataclass(frozen=True, slots=True)
class TaskFindings:
    """What the search on one task came to."""

    task: str
    never: float
    """Mean score of the hosts that were left alone, in points."""
    host_params: int
    slots: int
    episodes: int
    findings: tuple[Finding, ...]
    finalists: tuple[Finalist, ...]
    space: PlanSpace = field(compare=False)
    effects: Tensor = field(compare=False)
    """Of the features of plans: their posterior means, in points."""
    scales: dict[str, float]
    """Of the posterior: how large effects are, the luck of a seed and noise."""


Progress = Callable[[str, int, int], None]
"""Told a task, how many of its episodes are done, and how many there are."""


def search_tasks(
    job: SearchJob,
    workers: int = 1,
    progress: Progress = lambda _task, _done, _total: None,
) -> Iterator[TaskFindings]:
    """Search on each task, several at a time, and hand over what was found as each ends.

    What is in the job's folder already is taken up where it was left.
    """
    for task in job.tasks:
        find_task(task)
    if workers == 1:
        for task in job.tasks:
            yield search_task(job, task, progress)
        return
    # A fork would copy locks that other threads hold, torch's among them.
    context = multiprocessing.get_context("spawn")
    told = context.SimpleQueue()
    with _processes(ProcessPoolExecutor(workers, context, _begin_worker, (told,))) as pool:
        running = {pool.submit(search_task, job, task) for task in job.tasks}
        while running:
            done, running = wait(running, _POLL_SECONDS, FIRST_COMPLETED)
            while not told.empty():
                progress(*told.get())
            for future in done:
                yield future.result()


def search_task(job: SearchJob, task: str, progress: Progress | None = None) -> TaskFindings:
    """The search on one task, from the start or from where it was left."""
    progress = progress or _tell_parent
    search = PlanSearch(find_task(task), job.settings, job.episode, executor=job.executor)
    load(job, task, search)
    progress(task, len(search.played.plans), search.total)

    def after_batch(search: PlanSearch) -> None:
        save(job, task, search)
        progress(task, len(search.played.plans), search.total)

    findings = search.run(after_batch)
    posterior = search.posterior()
    alone = [score for plan, score in zip(search.played.plans, search.played.scores, strict=True) if not plan]
    return TaskFindings(
        task,
        sum(alone) / len(alone),
        search.space.host_params,
        len(search.space.fits),
        len(search.played.plans),
        tuple(findings),
        search.finalists(),
        search.space,
        posterior.mean_effects()[0],
        posterior.scales,
    )


def save(job: SearchJob, task: str, search: PlanSearch) -> None:
    """Write the state of a search, all of it or nothing."""
    write_atomically(job.file(task), pack_state({**_header(job, task), "search": search.state_dict()}))


def load(job: SearchJob, task: str, search: PlanSearch) -> None:
    """Take up the search that the job's folder holds, if it holds one."""
    path = job.file(task)
    if not path.exists():
        return
    state = read_state(path, "search", _AGAIN)
    expected = _header(job, task)
    try:
        checked_keys(state, (*expected, "search"), "it")
        for name, value in expected.items():
            if state[name] != value:
                raise InputError(f"{name} was {state[name]} there and is {value} here")
        search.load_state_dict(state["search"])
    except OtherCatalogueError:
        raise
    except InputError as error:
        raise InputError(f"{path} does not fit this search: {error}; {_AGAIN}") from None


def _header(job: SearchJob, task: str) -> dict[str, Any]:
    """What has to be the same for a search to go on."""
    settings = {**asdict(job.settings), "prices": list(job.settings.prices)}
    episode = {name: value for name, value in asdict(job.episode).items() if isinstance(value, int | float | None)}
    return {"version": _VERSION, "task": find_task(task).name, "settings": settings, "episode": episode}


_PARENT: "list[SimpleQueue[tuple[str, int, int]]]" = []
"""In a worker: where progress is told."""


def _begin_worker(told: "SimpleQueue[tuple[str, int, int]]") -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent, which ends its workers
    _PARENT.append(told)


def _tell_parent(task: str, done: int, total: int) -> None:
    for told in _PARENT:
        told.put((task, done, total))


@contextmanager
def _processes(pool: ProcessPoolExecutor) -> Iterator[ProcessPoolExecutor]:
    """The pool; when this is left early its processes are ended, and lose what they have not saved."""
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown()
