"""What workers cost until they are ready, and how much faster two of them are than one process."""

import multiprocessing
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from esper.api.environment import make_env
from esper.tamiyo import Random
from esper.tolaria import Environment
from esper_lab.step_speed import step_task
from esper_lab.timing import Progress
from esper_lab.workload import SpeedSettings

WORKERS = 2


def bench_workers(settings: SpeedSettings, progress: Progress) -> dict[str, Any]:
    """`workers`, by number of hosts: CPU-seconds of a worker until it is ready and of its server; steps, their ratio.

    Steps are timed by the clock, so they mean something only while as many cores are free. Without `/proc`, nothing is
    measured.
    """
    measured: dict[str, dict[str, float]] = {}
    if not Path("/proc/self/stat").exists():
        return {"workers": measured}
    for envs in settings.worker_envs:
        progress(f"{WORKERS} workers, {envs} hosts", 0, 1)
        # A process that has not started any yet.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            measured[str(envs)] = pool.submit(_measure, settings, envs).result()
    return {"workers": measured}


def _measure(settings: SpeedSettings, envs: int) -> dict[str, float]:
    torch.set_num_threads(1)
    options: dict[str, Any] = {"envs": envs, "episode_length": settings.episode_length}
    task = step_task(settings)
    pool = make_env(task, executor="native", workers=WORKERS, **options)
    workers = [child.pid for child in multiprocessing.active_children() if child.pid]
    ready = statistics.mean(_cpu_seconds(pid) for pid in workers)
    server = _parent(workers[0])
    importing = 0.0 if server == os.getpid() else _cpu_seconds(server)
    alone = make_env(task, executor="native", **options)
    length, turns = settings.episode_length, range(1 + settings.repeats)
    times = [[_step_seconds(env, length) for env in (alone, pool)] for _ in turns]
    pool.close()
    one, several = (statistics.median(seconds) for seconds in zip(*times[1:], strict=True))  # the first warms up
    return {
        "ready_cpu_s": ready,
        "server_cpu_s": importing,
        "alone_s_per_step": one,
        "s_per_step": several,
        "speedup": one / several,
    }


def _step_seconds(env: Environment, steps: int) -> float:
    """Seconds of a step with random legal actions; every turn plays the same episodes."""
    dice = Random()
    dice.reset(env.num_envs, 0)
    env.reset(range(env.num_envs))
    seconds = 0.0
    for _ in range(steps):
        actions = dice.decide(env.situation)
        start = time.perf_counter()
        env.step(actions)
        seconds += time.perf_counter() - start
    return seconds / steps


def _cpu_seconds(process: int) -> float:
    """CPU time of a process so far, its own and the system's on its behalf."""
    own, system = _status(process)[11:13]
    return (int(own) + int(system)) / os.sysconf("SC_CLK_TCK")


def _parent(process: int) -> int:
    return int(_status(process)[1])


def _status(process: int) -> list[str]:
    """The fields of `/proc/PID/stat` behind the name, which may hold blanks."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
