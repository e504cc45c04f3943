"""Tune the numbers of the heuristic, price by price, with seeds that no reported table uses.

Prints the gain in objective of each setting over the host left alone, on validation, for the same seeds.
"""

import argparse
import statistics
from collections.abc import Sequence

import torch

from esper.tamiyo import Heuristic, HeuristicSettings, Never, run_episodes
from esper.tasks import find_task
from esper.tolaria import EpisodeResult, EpisodeSettings

FIRST_SEED = 1100
TASKS = ("mnist1d", "mnist1d-shuffled", "mnist1d-mlp", "mnist1d-shuffled-mlp", "digits")
PRICES = (0.01, 0.03, 0.1)
TRIALS = {
    "one seed, wide": HeuristicSettings(max_seeds=1, max_rent=1.0, order=(6,)),
    "one seed, narrow": HeuristicSettings(max_seeds=1, max_rent=1.0, order=(5,)),
    "two seeds": HeuristicSettings(max_rent=1.0, more_rent=1.0),
    "three seeds": HeuristicSettings(max_seeds=3, max_rent=1.0, more_rent=1.0),
    "features from the start": HeuristicSettings(features_first_epoch=0),
    "all from epoch 2 on": HeuristicSettings(first_epoch=2),
    "the rule": HeuristicSettings(),
}


def main() -> None:
    """Run the trials and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="the first seed")
    parser.add_argument("--seeds", type=int, default=24, help="how many seeds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.seed, options.seed + options.seeds)
    never = {name: run(name, Never(), seeds, PRICES[0]) for name in TASKS}
    print("| price | setting |", " | ".join(TASKS), "| sum |")
    print("|---|---|" + "---|" * (len(TASKS) + 1))
    for price in PRICES:
        for label, settings in TRIALS.items():
            gains = [gain(never[name], run(name, Heuristic(settings), seeds, price)) for name in TASKS]
            print(f"| {price} | {label} |", " | ".join(f"{g:+.1f}" for g in [*gains, sum(gains)]), "|", flush=True)


def run(task_name: str, controller: Heuristic | Never, seeds: Sequence[int], price: float) -> list[EpisodeResult]:
    """The same seeds for every setting."""
    settings = EpisodeSettings(price=price)
    return run_episodes(find_task(task_name), controller, seeds, settings, executor="stacked", test=False)


def gain(never: list[EpisodeResult], grown: list[EpisodeResult]) -> float:
    """Mean gain in objective, in points; what is left alone owes nothing at any price."""
    return 100 * statistics.mean(b.val_objective - a.val_score for a, b in zip(never, grown, strict=True))


if __name__ == "__main__":
    main()
