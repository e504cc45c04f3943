"""Where the time of a whole step of the environment goes: training, measuring, and everything else."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from esper.api.environment import make_env
from esper.api.growth_bench import Progress
from esper.api.speed.settings import SpeedSettings
from esper.api.speed.workload import random_splits
from esper.tamiyo import Random
from esper.tolaria import GrowthEnv, Splits, Task, find_task
from esper.tolaria.executors import Executor

_SIZES = (3200, 800, 1000)
_EXECUTORS = ("stacked", "loop")


def _load() -> Splits:
    return random_splits((40,), _SIZES)


def step_task(settings: SpeedSettings, **overrides: Any) -> Task:
    """The task `mnist1d` with random data of its shape, which needs no generating."""
    changes = {"load": _load, "batches_per_epoch": settings.batches_per_epoch, **overrides}
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
    run_steps(env, 1)  # to warm up
    training, measuring, whole = _Clock(), _Clock(), _Clock()
    inner: Executor = env.population.executor
    inner.train_epoch = training.around(inner.train_epoch)  # type: ignore[method-assign]
    inner.measure = measuring.around(inner.measure)  # type: ignore[method-assign]
    run_steps(env, settings.episode_length, whole)
    return {
        "seconds_per_step": whole.seconds / settings.episode_length,
        "training_share": training.seconds / whole.seconds,
        "measuring_share": measuring.seconds / whole.seconds,
        "bookkeeping_share": 1 - (training.seconds + measuring.seconds) / whole.seconds,
    }


def run_steps(env: GrowthEnv, steps: int, clock: _Clock | None = None) -> None:
    """Begin an episode and take random legal actions; only the steps are timed."""
    dice = Random()
    dice.reset(env.num_envs, 0)
    with torch.random.fork_rng(devices=[]):
        env.reset()
        step = clock.around(env.step) if clock else env.step
        for _ in range(steps):
            step(dice.decide(env.population.situation))
