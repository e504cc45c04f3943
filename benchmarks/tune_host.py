"""Tune hosts alone: growth on an untuned host would prove nothing.

Prints validation scores of hosts left alone, in percent, mean ± standard error over seeds, for each schedule and
learning rate.
"""

import argparse
import statistics
from dataclasses import replace
from itertools import product
from typing import get_args

import torch

from esper.tamiyo import Never, run_episodes
from esper.tasks import RateSchedule, find_task
from esper.tolaria import EpisodeSettings

FIRST_SEED = 100


def main() -> None:
    """Run the grid and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=["mnist1d", "mnist1d-shuffled"])
    parser.add_argument("--rates", nargs="+", type=float, default=[0.02, 0.04, 0.06, 0.08, 0.12])
    parser.add_argument("--schedules", nargs="+", choices=get_args(RateSchedule), default=["cosine", "wsd"])
    parser.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw")
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--batch-size", type=int, help="samples in a minibatch; the task's own number if not given")
    parser.add_argument("--batches-per-epoch", type=int, help="likewise")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| schedule | learning rate |", " | ".join(options.tasks), "|")
    print("|---|---|" + "---|" * len(options.tasks))
    for schedule, rate in product(options.schedules, options.rates):
        cells = [cell(name, schedule, rate, options) for name in options.tasks]
        print(f"| {schedule} | {rate} |", " | ".join(cells), "|", flush=True)


def cell(task_name: str, schedule: RateSchedule, rate: float, options: argparse.Namespace) -> str:
    """The score of the host alone."""
    task = find_task(task_name)
    optimizer = replace(task.optimizer, name=options.optimizer, lr=rate, schedule=schedule)
    settings = EpisodeSettings(batches_per_epoch=options.batches_per_epoch, batch_size=options.batch_size)
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    results = run_episodes(replace(task, optimizer=optimizer), Never(), seeds, settings, test=False)
    scores = [100 * result.val_score for result in results]
    return f"{statistics.mean(scores):.1f} ± {statistics.stdev(scores) / len(scores) ** 0.5:.1f}"


if __name__ == "__main__":
    main()
