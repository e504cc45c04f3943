"""`make_env`: the growth environment with Esper's observation and reward."""

import math
import pickle
from contextlib import suppress
from typing import overload

from esper.kasmina import UNLIMITED
from esper.leyline import DEFAULT_PRICE, InputError
from esper.nissa import Hub
from esper.simic.config.reward import RewardConfig
from esper.simic.training import EnvRecipe, make_pool
from esper.tasks import Task, find_task
from esper.tolaria import ComputeSettings, Environment, EpisodeSettings, GrowthEnv, Shard, choose_executor


@overload
def make_env(
    task: str | Task,
    envs: int = 8,
    episode_length: int | None = None,
    seed: int = 0,
    executor: str = "auto",
    *,
    price: float | tuple[float, float] = DEFAULT_PRICE,
    flop_price: float = 0.0,
    budget: int = UNLIMITED,
    reward: RewardConfig | None = None,
    compute: ComputeSettings | None = None,
    hub: Hub | None = None,
) -> GrowthEnv: ...


@overload
def make_env(
    task: str | Task,
    envs: int = 8,
    episode_length: int | None = None,
    seed: int = 0,
    executor: str = "auto",
    *,
    price: float | tuple[float, float] = DEFAULT_PRICE,
    flop_price: float = 0.0,
    budget: int = UNLIMITED,
    reward: RewardConfig | None = None,
    compute: ComputeSettings | None = None,
    hub: Hub | None = None,
    workers: int,
) -> Environment: ...


def make_env(
    task: str | Task,
    envs: int = 8,
    episode_length: int | None = None,
    seed: int = 0,
    executor: str = "auto",
    *,
    price: float | tuple[float, float] = DEFAULT_PRICE,
    flop_price: float = 0.0,
    budget: int = UNLIMITED,
    reward: RewardConfig | None = None,
    compute: ComputeSettings | None = None,
    hub: Hub | None = None,
    workers: int = 0,
) -> Environment:
    """N hosts of a task that grow side by side, one epoch per step.

    | argument | meaning |
    |---|---|
    | task | a name (see `esper tasks`) or a task of one's own |
    | envs | how many hosts |
    | episode_length | steps in an episode; the task's own number if not given |
    | seed | the same seed gives the same episodes, whatever `envs` and `workers` are |
    | executor | "loop", "stacked", "native", or "auto", which times them briefly and takes the fastest |
    | price | what adding as many parameters as the host has costs; of a range, each episode draws |
    | flop_price | what adding as many FLOPs as the host needs for a sample costs, beside that |
    | budget | the most parameters that all seeds of a host together may add |
    | reward | the family of rewards and its numbers; the change of the objective by default |
    | compute | number format, compilation and devices of the hosts; float32, as written, on the CPU by default |
    | workers | processes that share the hosts, to be ended with `close`; 0 or 1: everything runs in this process |
    """
    if workers < 0:
        raise InputError(f"workers must be 0 or more; got {workers}")
    chosen = find_task(task) if isinstance(task, str) else task
    settings = EpisodeSettings(
        length=episode_length,
        price=price,
        budget=budget,
        flop_price=flop_price,
        compute=compute or ComputeSettings(),
    )
    if workers <= 1:
        return EnvRecipe(chosen, settings, seed, executor, reward)(Shard(0, envs), hub or Hub())
    # Settled here, so that all workers agree; and what is wrong with the data is told before any of them starts.
    settled = choose_executor(executor, chosen, math.ceil(envs / workers), settings.compute)
    chosen.splits()
    return make_pool(EnvRecipe(_sendable(chosen), settings, seed, settled, reward), envs, workers, seed, hub=hub)


def _sendable(task: Task) -> Task | str:
    """What tells another process the task: itself, or else its name, if that is known everywhere."""
    try:
        pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        with suppress(InputError):
            if find_task(task.name) is task:
                return task.name
        raise InputError(
            f"the task {task.name!r} cannot be sent to workers: {error}. Its functions must be defined in a module"
        ) from error
    return task
