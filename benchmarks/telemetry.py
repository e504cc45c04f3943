"""What watching a run costs: the same whole run at each telemetry level, in processes of their own that take turns.

After every step of its hosts a process hands over to the next one and waits, so that a machine that is busy for a while
is busy for all of them. Training does not depend on the level, so the turns of all processes are the same work. A
process may be faster than its twin by a per cent or two for reasons of its own, such as where its memory lies, so
runs are repeated in new processes, and intervals are over these repeats.
"""

import argparse
import multiprocessing as mp
import statistics
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import torch
from rich.progress import track

from esper.api.statistics import Estimate
from esper.nissa import BackgroundSink, Hub, JsonLinesSink
from esper.simic.config import TrainingConfig, changed
from esper.simic.training import Trainer

Level = Literal["off", "minimal", "normal", "debug"]
LEVELS: tuple[Level, ...] = ("off", "minimal", "normal", "debug")


class Turns:
    """One process's side of taking turns: reports wall and CPU-seconds of each turn, then waits for the next."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._wait()

    def _wait(self) -> None:
        self._connection.recv()
        self._start = (time.perf_counter(), time.process_time())

    def end(self, *, last: bool = False) -> bool:
        """Hand over; returns False, as a run that is asked whether to stop wants to hear."""
        wall, cpu = time.perf_counter() - self._start[0], time.process_time() - self._start[1]
        self._connection.send((wall, cpu, last))
        if not last:
            self._wait()
        return False


def train(connection: Connection, config: TrainingConfig, log: Path) -> None:
    """One whole run, a turn per step of its hosts."""
    torch.set_num_threads(1)
    turns = Turns(connection)
    hub = Hub([BackgroundSink(JsonLinesSink(log))])
    Trainer(config, hub=hub, should_stop=turns.end).run()
    hub.close()
    turns.end(last=True)


def take_turns(configs: Sequence[TrainingConfig], logs: Sequence[Path]) -> list[list[float]]:
    """Wall and CPU-seconds of whole runs `[run][kind]`, played turn by turn. Who begins changes from turn to turn."""
    context = mp.get_context("spawn")
    pipes = [context.Pipe() for _ in configs]
    runs = [
        context.Process(target=train, args=(theirs, config, log))
        for (_, theirs), config, log in zip(pipes, configs, logs, strict=True)
    ]
    for run in runs:
        run.start()
    connections = [ours for ours, _ in pipes]
    totals = [[0.0, 0.0] for _ in configs]
    order, done = list(range(len(configs))), False
    while not done:
        for number in order:
            connections[number].send(None)
            wall, cpu, done = connections[number].recv()
            totals[number][0] += wall
            totals[number][1] += cpu
        order.reverse()
    for run in runs:
        run.join()
    return totals


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="mnist1d")
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--executor", default="stacked")
    parser.add_argument(
        "--levels", nargs="+", choices=LEVELS, default=["off", "normal"], help="the first is compared with"
    )
    given = parser.parse_args()
    options: dict[str, Any] = {"world.tasks": (given.task,), "rounds": given.rounds, "world.envs": given.envs}
    # Rounds alone: what is played before and between them is not recorded and would only thin the cost out.
    options |= {
        "world.executor": given.executor,
        "lessons.teacher": None,
        "validate_every": 0,
        "validation_episodes": 1,
    }
    configs = [changed(TrainingConfig(), options | {"telemetry.level": level}) for level in given.levels]
    repeats = []
    with tempfile.TemporaryDirectory() as folder:
        for repeat in track(range(given.repeats), "repeats"):
            logs = [Path(folder) / f"{level}-{repeat}" for level in given.levels]
            repeats.append(take_turns(configs, logs))
        sizes = [log.stat().st_size / given.rounds / 1024 for log in logs]
    print("| level | wall s of a run | % more (95 %) | CPU-s of a run | % more (95 %) | KiB per round |")
    print("|---|---|---|---|---|---|")
    for number, level in enumerate(given.levels):
        row = [level]
        for kind in (0, 1):
            seconds = statistics.fmean(totals[number][kind] for totals in repeats)
            ratios = [100 * (totals[number][kind] / totals[0][kind] - 1) for totals in repeats]
            row += [
                f"{seconds:.1f}",
                "{:+.2f} ({:+.2f} to {:+.2f})".format(*Estimate.of(ratios).interval) if number else "",
            ]
        print("| " + " | ".join([*row, f"{sizes[number]:.0f}"]) + " |")


if __name__ == "__main__":
    main()
