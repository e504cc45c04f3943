"""Optimiser steps of hosts per second: the executors and the bare loop, interleaved, on the same hosts and seeds."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from esper.tasks import Task
from esper.tolaria import Executor, LoopExecutor, StackedExecutor
from esper.tolaria.executors import make_executor
from esper_lab.timing import Progress, cpu_seconds, interleaved_medians
from esper_lab.workload import BareTrainer, SpeedSettings, half_planted, host_task, sites_of

CONTENDERS = ("bare", "loop", "stacked", "native")
NATIVE_HOSTS = ("mlp", "conv1d")
"""What the native executor can run."""
_FEWEST_TURNS = 2
"""Of each contender, the first to warm up: a case that has no time for these is skipped."""


def bench_host_steps(settings: SpeedSettings, progress: Progress) -> dict[str, Any]:
    """Numbers as plain data.

    `host_steps_per_second[host][contender][N]` counts minibatches of single hosts; `ratio_to_bare` has the same
    layout. A case that would take too long is missing from both, and `notes` says so.
    """
    cases = [(host, num) for host in settings.hosts for num in settings.nums]
    speeds: dict[str, dict[str, dict[str, float]]] = {
        host: {contender: {} for contender in CONTENDERS} for host in settings.hosts
    }
    notes = []
    for done, (host, num) in enumerate(cases):
        progress(f"{num} x {host}", done, len(cases))
        turn = _shortest_turn(host, settings) * num
        if turn * len(CONTENDERS) * _FEWEST_TURNS > settings.case_seconds:
            notes.append(f"{num} x {host} was skipped: one minibatch of all hosts takes {turn:.1f} s in the bare loop")
            continue
        for contender, speed in _time_case(host, num, turn, settings).items():
            speeds[host][contender][str(num)] = speed
    return {
        "host_steps_per_second": speeds,
        "ratio_to_bare": {
            host: {
                contender: {num: speed / by_contender["bare"][num] for num, speed in by_num.items()}
                for contender, by_num in by_contender.items()
            }
            for host, by_contender in speeds.items()
        },
        "notes": notes,
    }


def _shortest_turn(host: str, settings: SpeedSettings) -> float:
    """Seconds of one minibatch of one bare host with a seed in every second slot."""
    task = host_task(host, settings.batch_size, 1)
    bare = _bare(task, 2, 1)
    bare()
    return min(cpu_seconds(bare) for _ in range(3)) / 2


def _time_case(host: str, num: int, shortest: float, settings: SpeedSettings) -> dict[str, float]:
    """Host steps per second of every contender: the median of as many turns as there is time for."""
    wanted = max(settings.turn_batches, math.ceil(settings.turn_seconds / shortest))
    batches = max(1, min(wanted, int(settings.case_seconds / (len(CONTENDERS) * _FEWEST_TURNS * shortest))))
    task = host_task(host, settings.batch_size, batches)
    runs = {
        "bare": partial(cpu_seconds, _bare(task, num, batches)),
        "loop": partial(cpu_seconds, _planted(LoopExecutor(task, num, 1), num).train_epoch),
        "stacked": partial(cpu_seconds, _planted(StackedExecutor(task, num, 1), num).train_epoch),
    }
    if host in NATIVE_HOSTS:
        runs["native"] = partial(cpu_seconds, _planted(make_executor("native", task, num, 1), num).train_epoch)
    affordable = settings.case_seconds / (len(runs) * batches * shortest) - 1
    turns = interleaved_medians(runs, max(1, min(settings.repeats, int(affordable))))
    return {contender: num * batches / seconds for contender, seconds in turns.items()}


def _bare(task: Task, num: int, batches: int) -> Callable[[], None]:
    sites, catalogue = sites_of(task)
    trainers = [BareTrainer(task, sites, ids) for ids in half_planted(num, catalogue).blueprint.tolist()]

    def run() -> None:
        for trainer in trainers:
            trainer.train(batches)

    return run


def _planted(executor: Executor, num: int) -> Executor:
    executor.start(range(num), range(num))
    executor.follow(half_planted(num, executor.catalogue))
    return executor
