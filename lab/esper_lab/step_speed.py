"""Where the time of a whole step of the environment goes, and how time and memory scale.

Every case of the scaling runs in a process of its own: the peak of one would hide those of the others.
"""

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from esper.api.environment import make_env
from esper.tamiyo import Random
from esper.tasks import Splits, Task, find_task
from esper.tolaria import GrowthEnv
from esper.tolaria.executors import Executor
from esper_lab.timing import Progress
from esper_lab.workload import SpeedSettings, random_splits

_SIZES = (3200, 800, 1000)
_EXECUTORS = ("native", "stacked", "loop")
_CHANNELS = 12
_LENGTH_ENVS = 8
_MEGABYTE = 2**20


def _load() -> Splits:
    return random_splits((40,), _SIZES)


def _source() -> str:
    return "random"


def step_task(settings: SpeedSettings, **overrides: Any) -> Task:
    """The task `mnist1d` with random data of its shape, which needs no generating."""
    changes = {"load": _load, "data": _source, "batches_per_epoch": settings.batches_per_epoch, **overrides}
    return replace(find_task("mnist1d"), **changes)


class _Clock:
    """Adds up the CPU time that calls take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.process_time() - start

        return timed


def bench_whole_step(settings: SpeedSettings, progress: Progress) -> dict[str, Any]:
    """Numbers as plain data.

    `bookkeeping_share` is the share of a step (lifecycle, masks, observation, reward, governor, snapshots) spent
    outside training and measuring, with the faster executor; `counterfactual_share` the share spent measuring, which
    is validation and counterfactuals in one. `whole_step` holds both, and seconds, for each executor.
    """
    parts = {}
    for done, name in enumerate(_EXECUTORS):
        progress(f"an episode of {settings.step_envs} hosts, {name}", done, len(_EXECUTORS))
        parts[name] = _time_episode(settings, name)
    fastest = min(parts.values(), key=lambda part: part["seconds_per_step"])
    return {
        "bookkeeping_share": fastest["bookkeeping_share"],
        "counterfactual_share": fastest["measuring_share"],
        "whole_step": parts,
    }


def _time_episode(settings: SpeedSettings, executor: str) -> dict[str, float]:
    env = make_env(step_task(settings), settings.step_envs, settings.episode_length, executor=executor)
    _run_steps(env, 1)  # to warm up
    training, measuring, whole = _Clock(), _Clock(), _Clock()
    inner: Executor = env.population.executor
    inner.train_epoch = training.around(inner.train_epoch)  # type: ignore[method-assign]
    inner.measure = measuring.around(inner.measure)  # type: ignore[method-assign]
    _run_steps(env, settings.episode_length, whole)
    return {
        "seconds_per_step": whole.seconds / settings.episode_length,
        "training_share": training.seconds / whole.seconds,
        "measuring_share": measuring.seconds / whole.seconds,
        "bookkeeping_share": 1 - (training.seconds + measuring.seconds) / whole.seconds,
    }


def _run_steps(env: GrowthEnv, steps: int, clock: _Clock | None = None) -> None:
    """Begin an episode and take random legal actions; only the steps are timed."""
    dice = Random()
    dice.reset(env.num_envs, 0)
    with torch.random.fork_rng(devices=[]):
        env.reset()
        step = clock.around(env.step) if clock else env.step
        for _ in range(steps):
            step(dice.decide(env.population.situation))


def bench_scaling(settings: SpeedSettings, progress: Progress) -> dict[str, Any]:
    """`growth[by][size]`: seconds of a step and peak memory beyond an idle process, with the native executor."""
    cases: list[tuple[str, int, dict[str, Any]]] = [
        *(("hosts", num, {"envs": num}) for num in settings.nums),
        *(("slots", num, {"slots": num}) for num in settings.slots),
        *(("episode_length", num, {"length": num, "envs": _LENGTH_ENVS}) for num in settings.lengths),
    ]
    growth: dict[str, dict[str, Any]] = {"hosts": {}, "slots": {}, "episode_length": {}}
    for done, (by, size, options) in enumerate(cases):
        progress(f"time and memory, {size} {by.replace('_', ' ')}", done, len(cases))
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            growth[by][str(size)] = pool.submit(_measure, settings, **options).result()
    return {"growth": growth}


def _measure(
    settings: SpeedSettings, envs: int | None = None, slots: int | None = None, length: int | None = None
) -> dict[str, float]:
    torch.set_num_threads(1)
    task = step_task(settings) if slots is None else task_with_slots(settings, slots)
    task.splits()
    idle = _peak_megabytes()
    steps = length or settings.scaling_steps
    env = make_env(task, envs or settings.step_envs, steps, executor="native")
    start = time.process_time()
    _run_steps(env, steps)
    seconds = time.process_time() - start
    return {"seconds_per_step": seconds / steps, "peak_mb": _peak_megabytes() - idle}


def task_with_slots(settings: SpeedSettings, slots: int) -> Task:
    """The task of a whole step with hosts of an odd number of slots: two at each block, and one at the output."""
    return step_task(settings, host_settings={"channels": (_CHANNELS,) * (slots // 2)})


def _peak_megabytes() -> float:
    """The most memory this process has held so far."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent held before this program was loaded
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _MEGABYTE
