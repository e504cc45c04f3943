"""Tune the hosts of the MNIST-1D tasks alone: growth on an untuned host would prove nothing.

Prints validation accuracy of the host left alone, mean and spread over seeds, for each optimiser,
learning rate and schedule, at the task's own number of epochs.
"""

import argparse
import statistics
from dataclasses import replace
from itertools import product
from typing import Literal

import torch

from esper.tamiyo import Never, run_episode
from esper.tolaria import OptimizerSettings, find_task

FIRST_SEED = 100
Name = Literal["adamw", "sgd"]
Schedule = Literal["constant", "cosine", "wsd"]
SCHEDULES: tuple[Schedule, ...] = ("constant", "cosine", "wsd")
RATES: dict[Name, tuple[float, ...]] = {"adamw": (0.02, 0.04, 0.06, 0.08, 0.12), "sgd": (0.1, 0.2, 0.4)}
DECAYS: dict[Name, float] = {"adamw": 0.01, "sgd": 0.0}


def main() -> None:
    """Run the grid and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", default=["mnist1d", "mnist1d-shuffled"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| optimiser | schedule | learning rate |", " | ".join(options.tasks), "|")
    print("|---|---|---|" + "---|" * len(options.tasks))
    for name, schedule in product(RATES, SCHEDULES):
        for rate in RATES[name]:
            cells = []
            for task_name in options.tasks:
                task = find_task(task_name)
                decay = DECAYS[name]
                settings = replace(task.optimizer, name=name, lr=rate, weight_decay=decay, schedule=schedule)
                cells.append(cell(task_name, settings, options.seeds))
            print(f"| {name} | {schedule} | {rate} |", " | ".join(cells), "|", flush=True)


def cell(task_name: str, settings: OptimizerSettings, seeds: int) -> str:
    """Validation accuracy of the host alone in percent."""
    task = replace(find_task(task_name), optimizer=settings)
    scores = [100 * run_episode(task, Never(), FIRST_SEED + seed).val_score for seed in range(seeds)]
    return f"{statistics.mean(scores):.1f} ± {statistics.stdev(scores):.1f}"


if __name__ == "__main__":
    main()
