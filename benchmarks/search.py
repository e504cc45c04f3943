"""Whether plan search finds the same every time: searches from several seeds, their plans on fresh seeds.

    python -m benchmarks.search --tasks mnist1d mnist1d-shuffled --seeds 5 --json search.json

Every plan that a search ends with, that of one long search, never and the heuristic are played from the same fresh
seeds. Regret is the distance to the best of them, in points of the objective on validation.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor

from esper.leyline import POINTS
from esper.simic.search import Plan, PlanSearch, SearchSettings, show_plan
from esper.tamiyo import Controller, Planting, Schedule, make_controller, run_episodes
from esper.tasks import find_task
from esper.tolaria import EpisodeSettings


@dataclass
class Options:
    """What is searched."""

    tasks: tuple[str, ...] = ("mnist1d", "mnist1d-shuffled")
    """Tasks to search on."""
    seeds: int = 5
    """Searches of each task."""
    first: int = 0
    """The seed of the first search; the others follow."""
    episodes: int = 256
    """Episodes of each search, those of its finalists not counted."""
    long: int = 0
    """Episodes of the one long search; 0: none."""
    price: float = 0.03
    """Price of doubling the host's parameters, in units of score."""
    fresh: int = 64
    """Fresh seeds for the comparison."""
    fresh_from: int = 40_000_000
    """The first of them."""
    known: tuple[str, ...] = ()
    """Plans to compare with, as searches show them."""
    json: Path | None = None
    """Write the numbers to this file."""


def search(task: str, options: Options) -> dict[str, Plan]:
    """The plans that searches from several seeds end with, that of a long one, and those known before."""
    runs = [(f"seed {seed}", seed, options.episodes) for seed in range(options.first, options.first + options.seeds)]
    runs += [("long", options.first + options.seeds, options.long)] if options.long else []
    found: dict[str, Plan] = {}
    for name, seed, episodes in runs:
        start = time.process_time()
        settings = SearchSettings(episodes=episodes, prices=(options.price,), seed=seed)
        found[name] = PlanSearch(find_task(task), settings, EpisodeSettings(merit=False)).run()[0].plan
        print(f"{task}, {name}: {show_plan(found[name])} ({time.process_time() - start:.0f} CPU-seconds)", flush=True)
    for text in options.known:
        found[f"known {text}"] = tuple(map(Planting.parse, text.split()))
    return found


def objectives(task: str, controller: Controller, options: Options) -> Tensor:
    """`[fresh]`: the objective on the fresh seeds, in points."""
    seeds = range(options.fresh_from, options.fresh_from + options.fresh)
    settings = EpisodeSettings(merit=False, price=options.price)
    results = run_episodes(find_task(task), controller, seeds, settings, test=False)
    return torch.tensor([POINTS * result.val_objective for result in results])


def compare(task: str, found: dict[str, Plan], options: Options) -> dict[str, dict[str, Any]]:
    """Each plan, the host left alone and the heuristic, on the fresh seeds."""
    controllers: dict[str, Controller] = {name: Schedule(plan) for name, plan in found.items()}
    controllers |= {name: make_controller(name) for name in ("never", "heuristic")}
    rows = {name: objectives(task, controller, options) for name, controller in controllers.items()}
    best = max(rows.values(), key=lambda values: float(values.mean()))
    report = {}
    for name, values in rows.items():
        regret = best - values
        error = float(regret.std() / len(regret) ** 0.5)
        print(f"  {name:10} {values.mean():6.2f}   regret {regret.mean():5.2f} ± {error:.2f}", flush=True)
        plan = show_plan(found[name]) if name in found else None
        report[name] = {"plan": plan, "objective": float(values.mean()), "regret": float(regret.mean()), "error": error}
    return report


def main() -> None:
    options = tyro.cli(Options)
    torch.set_num_threads(1)
    report = {task: compare(task, search(task, options), options) for task in options.tasks}
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
