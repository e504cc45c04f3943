"""Tune the numbers of the heuristic on the MNIST-1D tasks, with seeds that no reported table uses.

Prints the gain of each setting over the host left alone, on validation, for the same seeds: in accuracy and
in objective, per task.
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace

import torch

from esper.tamiyo import Heuristic, HeuristicSettings, Never, run_episodes
from esper.tolaria import EpisodeResult, find_task

FIRST_SEED = 1000
TASKS = ("mnist1d", "mnist1d-shuffled")
ONE_BY_ONE = HeuristicSettings(
    first_epoch=3, latest_epoch=4, time_needed=0.32, patience=3, margin=0.5, max_unfinished=1, max_rent=1.0
)
SIDE_BY_SIDE = replace(ONE_BY_ONE, first_epoch=2, latest_epoch=2, patience=5, max_unfinished=2, max_rent=0.015)
AT_ONCE = replace(SIDE_BY_SIDE, first_epoch=0, latest_epoch=0)
TRIALS = [
    ONE_BY_ONE,
    SIDE_BY_SIDE,
    replace(SIDE_BY_SIDE, first_epoch=1, latest_epoch=1),
    AT_ONCE,
    replace(AT_ONCE, margin=1.0),
    replace(AT_ONCE, margin=2.0),
    replace(AT_ONCE, margin=1.0, time_needed=0.56),
    replace(AT_ONCE, margin=1.0, time_needed=0.8),
    replace(AT_ONCE, margin=1.0, time_needed=0.8, patience=8),
    replace(AT_ONCE, margin=0.5, time_needed=0.8),
]
COLUMNS = {
    "latest epoch": "latest_epoch",
    "on trial": "max_unfinished",
    "most rent": "max_rent",
    "patience": "patience",
    "margin": "margin",
    "time needed": "time_needed",
}


def main() -> None:
    """Run the trials and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="the first seed")
    parser.add_argument("--seeds", type=int, default=32, help="how many seeds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.seed, options.seed + options.seeds)
    never = {name: run(name, Never(), seeds) for name in TASKS}
    print("|", " | ".join([*COLUMNS, *TASKS]), "|")
    print("|" + "---|" * (len(COLUMNS) + len(TASKS)))
    for settings in TRIALS:
        shown = [str(getattr(settings, field)) for field in COLUMNS.values()]
        cells = [gain(never[name], run(name, Heuristic(settings), seeds)) for name in TASKS]
        print("|", " | ".join(shown + cells), "|", flush=True)


def run(task_name: str, controller: Heuristic | Never, seeds: Sequence[int]) -> list[EpisodeResult]:
    """The same seeds for every setting."""
    return run_episodes(find_task(task_name), controller, seeds, executor="stacked")


def gain(never: list[EpisodeResult], grown: list[EpisodeResult]) -> str:
    """Mean gain in accuracy and in objective, in points, the latter with its standard error."""
    pairs = list(zip(never, grown, strict=True))
    accuracy = [100 * (b.val_score - a.val_score) for a, b in pairs]
    objective = [100 * (b.val_objective - a.val_objective) for a, b in pairs]
    error = statistics.stdev(objective) / len(objective) ** 0.5
    return f"{statistics.mean(accuracy):+.1f}, objective {statistics.mean(objective):+.1f} ± {error:.1f}"


if __name__ == "__main__":
    main()
