"""How time and memory grow with the number of hosts, the number of slots and the length of an episode.

Every case runs in a process of its own: the peak of one would hide those of the others.
"""

import multiprocessing
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from esper.api.environment import make_env
from esper.api.growth_bench import Progress
from esper.api.speed.settings import SpeedSettings
from esper.api.speed.whole_step import run_steps, step_task
from esper.tolaria import Task

_CHANNELS = 12
_LENGTH_ENVS = 8
_MEGABYTE = 2**20


def bench_growth(settings: SpeedSettings, progress: Progress) -> dict[str, Any]:
    """`growth[by][size]`: seconds of a step and peak memory beyond an idle process, with the stacked executor."""
    cases: list[tuple[str, int, dict[str, Any]]] = [
        *(("hosts", num, {"envs": num}) for num in settings.growth_nums),
        *(("slots", num, {"slots": num}) for num in settings.growth_slots),
        *(("episode_length", num, {"length": num, "envs": _LENGTH_ENVS}) for num in settings.growth_lengths),
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
    steps = length or settings.growth_steps
    env = make_env(task, envs or settings.step_envs, steps, executor="stacked")
    start = time.process_time()
    run_steps(env, steps)
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
