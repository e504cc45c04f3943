"""Tune the numbers of the heuristic on the MNIST-1D tasks, with seeds that no reported table uses.

Prints the gain of each setting over the host left alone, on validation, for the same seeds: in accuracy and
in objective, per task.
"""

import argparse
import statistics
from dataclasses import asdict, replace

import torch

from esper.tamiyo import Heuristic, HeuristicSettings, Never, run_episode
from esper.tolaria import EpisodeResult, find_task

FIRST_SEED = 100
TASKS = ("mnist1d", "mnist1d-shuffled")
BY_PRICE = (3, 4, 1, 2, 0)
BASE = HeuristicSettings(first_epoch=3, latest_epoch=4, steps_needed=8, patience=3, margin=1.0, order=BY_PRICE)
TRIALS = [
    replace(BASE, patience=0, order=tuple(range(5))),
    replace(BASE, patience=0),
    replace(BASE, patience=2),
    BASE,
    replace(BASE, patience=4),
    replace(BASE, margin=2.0),
    replace(BASE, margin=0.5),
    replace(BASE, first_epoch=2, latest_epoch=2),
]


def run(task_name: str, controller: Heuristic | Never, seeds: int) -> list[EpisodeResult]:
    """The same seeds for every setting."""
    return [run_episode(find_task(task_name), controller, FIRST_SEED + seed) for seed in range(seeds)]


def main() -> None:
    """Run the trials and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    never = {name: run(name, Never(), options.seeds) for name in TASKS}
    print("| first, latest | steps needed | patience | margin | order |", " | ".join(TASKS), "|")
    print("|---|---|---|---|---|" + "---|" * len(TASKS))
    for settings in TRIALS:
        numbers = asdict(settings)
        cells = [gain(never[name], run(name, Heuristic(settings), options.seeds)) for name in TASKS]
        shown = [f"{numbers['first_epoch']}, {numbers['latest_epoch']}"]
        shown += [str(numbers[key]) for key in ("steps_needed", "patience", "margin")]
        shown += ["".join(str(index) for index in numbers["order"])]
        print("|", " | ".join(shown + cells), "|", flush=True)


def gain(never: list[EpisodeResult], grown: list[EpisodeResult]) -> str:
    """Mean gain in accuracy and in objective, in points."""
    pairs = list(zip(never, grown, strict=True))
    accuracy = statistics.mean(100 * (b.val_score - a.val_score) for a, b in pairs)
    objective = statistics.mean(100 * (b.val_objective - a.val_objective) for a, b in pairs)
    return f"{accuracy:+.1f}, objective {objective:+.1f}"


if __name__ == "__main__":
    main()
