"""What watching a run costs: rounds of the same run at each telemetry level, taking turns, in CPU-seconds.

CPU-seconds of the whole process, the thread that writes the log included, because wall time on a shared machine says
more about its neighbours.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch

from esper.nissa import BackgroundSink, Hub, JsonLinesSink
from esper.simic.training import Trainer, TrainingConfig

Level = Literal["off", "minimal", "normal", "debug"]
LEVELS: tuple[Level, ...] = ("off", "minimal", "normal", "debug")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="mnist1d")
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--executor", default="stacked")
    parser.add_argument("--episode-length", type=int, default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = ("envs", "executor", "episode_length")
    # One round more than is played, because the last one of a run is followed by a validation.
    config: dict[str, Any] = {"tasks": (given.task,), "rounds": given.rounds + 1}
    config |= {name: getattr(given, name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        logs = {level: Path(folder) / level for level in LEVELS}
        hubs = {level: Hub([BackgroundSink(JsonLinesSink(log))]) for level, log in logs.items()}
        trainers = {level: Trainer(TrainingConfig(**config, telemetry=level), hub=hubs[level]) for level in LEVELS}
        seconds: dict[Level, list[float]] = {level: [] for level in LEVELS}
        for _ in range(given.rounds):
            for level, trainer in trainers.items():
                start = time.process_time()
                trainer._play_round()
                seconds[level].append(time.process_time() - start)
        for hub in hubs.values():
            hub.close()
        sizes = {level: log.stat().st_size / given.rounds / 1024 for level, log in logs.items()}
    print("| level | CPU-s per round | more than off | KiB per round |\n|---|---|---|---|")
    # Rounds are paired: the same episodes, one right after the other. The first one warms up.
    for level in LEVELS:
        ratios = [mine / off for mine, off in zip(seconds[level][1:], seconds["off"][1:], strict=True)]
        print(
            f"| {level} | {median(seconds[level][1:]):.3f} | {100 * (median(ratios) - 1):+.1f} % | {sizes[level]:.0f} |"
        )


if __name__ == "__main__":
    main()
