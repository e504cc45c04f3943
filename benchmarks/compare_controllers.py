"""Controllers over collections of tasks: objectives on the test split, paired by seed, with intervals.

    python -m benchmarks.compare_controllers --controllers never heuristic rule runs/any --against heuristic

A controller is a name, a checkpoint or a run folder. Intervals are of the mean over tasks: tasks are drawn again, and
then the seeds of each (`--json` holds every number).
"""

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import tyro

from esper.leyline import POINTS, InputError
from esper.simic.search import SearchJob, SearchSettings, search_tasks
from esper.simic.search.search import best_finalist
from esper.simic.training import load_controller
from esper.tamiyo import Controller, Schedule, controller_names, make_controller, run_episodes
from esper.tasks import find_task, tasks_of
from esper.tolaria import EpisodeSettings

_DRAWS = 10_000
_COLLECTIONS = ("training", "held-out")


@dataclass
class Options:
    """What is compared."""

    controllers: tuple[str, ...] = ("never", "random", "schedule", "heuristic", "rule")
    """Names, checkpoints or run folders."""
    against: str = "heuristic"
    """The one of them that differences are taken to."""
    tasks: tuple[str, ...] = ("training",)
    """Tasks or collections of tasks (training, held-out); those whose data is absent are left out, and said."""
    price: float = 0.03
    """Price of doubling the host's parameters, in units of score."""
    episodes: int = 16
    """Seeds of each task."""
    seed: int = 70_000_000
    """The first of them."""
    batches_per_epoch: int | None = None
    """Minibatches in an epoch; None: each task's own number."""
    plans: Path | None = None
    """Folder of `esper search`: the best plan that was found for each task is compared too."""
    search_episodes: int = 256
    """As in that search."""
    final_seeds: int = 32
    """As in that search."""
    workers: int = 1
    """Processes, each of which plays a task of its own."""
    json: Path | None = None
    """Write the numbers to this file."""

    @property
    def names(self) -> list[str]:
        """What is compared, by name."""
        return [*dict.fromkeys((*self.controllers, self.against)), *(["plans"] if self.plans else [])]


def main() -> None:
    """Play, compare, print."""
    options = tyro.cli(Options, description=__doc__)
    tasks = [task for given in options.tasks for task in (tasks_of(given) if given in _COLLECTIONS else (given,))]
    objectives: dict[str, dict[str, list[float]]] = {name: {} for name in options.names}
    # Workers of their own, so that what they compile and load does not pile up here.
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as pool:
        for task, rows in zip(tasks, pool.map(partial(_play_all, options=options), tasks), strict=True):
            if isinstance(rows, str):
                print(f"{task}: left out, {rows}", flush=True)
                continue
            for name, values in rows.items():
                objectives[name][task] = values
            shown = (f"{name} {np.mean(values):.1f}" for name, values in rows.items())
            print(f"{task}: {'  '.join(shown)}", flush=True)
    report = {name: _compare(rows, objectives[options.against]) for name, rows in objectives.items()}
    print(f"mean over tasks, and difference to {options.against} with its 95 % interval")
    for name, row in report.items():
        interval = f"{row['difference']:+.2f} ({row['low']:+.2f} to {row['high']:+.2f})"
        above = f"above on {row['tasks_above']} tasks and in {row['probability_of_improvement']:.0%} of episodes"
        print(f"  {name:30} {row['mean']:.2f}   {interval}, {above}")
    if options.json is not None:
        content = {"price": options.price, "seed": options.seed, "summary": report, "objectives": objectives}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


def _play_all(task: str, options: Options) -> dict[str, list[float]] | str:
    """The objectives of each controller on a task; or why it is left out."""
    torch.set_num_threads(1)
    try:
        find_task(task).splits()
    except InputError as error:
        return str(error)
    made = {name: _found(task, options) if name == "plans" else _controller(name) for name in options.names}
    return {name: _play(task, controller, options) for name, controller in made.items()}


def _controller(name: str) -> Controller:
    return make_controller(name) if name in controller_names() else load_controller(Path(name))


def _found(task: str, options: Options) -> Controller:
    """The best plan that a search found for this task and price."""
    assert options.plans is not None
    settings = SearchSettings(episodes=options.search_episodes, final_seeds=options.final_seeds)
    (found,) = search_tasks(SearchJob((task,), options.plans, settings, EpisodeSettings(merit=False)))
    return Schedule(best_finalist(found.finalists, found.host_params, options.price).plan)


def _play(task: str, controller: Controller, options: Options) -> list[float]:
    """The objective of each seed on the test split, in points."""
    settings = EpisodeSettings(price=options.price, batches_per_epoch=options.batches_per_epoch)
    seeds = range(options.seed, options.seed + options.episodes)
    return [POINTS * result.test_objective for result in run_episodes(find_task(task), controller, seeds, settings)]


def _compare(rows: dict[str, list[float]], others: dict[str, list[float]]) -> dict[str, float]:
    """Mean over tasks, mean difference with its interval by a bootstrap over tasks and then seeds, and how often it is
    above."""
    differences = np.array([np.subtract(rows[task], others[task]) for task in rows])
    dice = np.random.default_rng(0)
    tasks, seeds = differences.shape
    drawn = differences[
        dice.integers(tasks, size=(_DRAWS, tasks, 1)), dice.integers(seeds, size=(_DRAWS, tasks, seeds))
    ]
    low, high = np.quantile(drawn.mean((1, 2)), (0.025, 0.975))
    mean = float(np.mean([np.mean(values) for values in rows.values()]))
    above = float(((differences > 0) + 0.5 * (differences == 0)).mean())
    return {
        "mean": mean,
        "difference": float(differences.mean()),
        "low": float(low),
        "high": float(high),
        "probability_of_improvement": above,
        "tasks_above": int((differences.mean(1) > 0).sum()),
    }


if __name__ == "__main__":
    main()
