"""`make_env`: the growth environment with Esper's observation and reward."""

from esper.kasmina import UNLIMITED
from esper.leyline import DEFAULT_PRICE
from esper.nissa import Hub
from esper.simic.control import signals_to_features
from esper.simic.rewards import RewardConfig, make_reward
from esper.tolaria import EpisodeSettings, GrowthEnv, Population, Task, find_task


def make_env(
    task: str | Task,
    envs: int = 8,
    episode_length: int | None = None,
    seed: int = 0,
    executor: str = "auto",
    *,
    price: float | tuple[float, float] = DEFAULT_PRICE,
    budget: int = UNLIMITED,
    reward: RewardConfig | None = None,
    hub: Hub | None = None,
) -> GrowthEnv:
    """N hosts of a task that grow side by side, one epoch per step.

    | argument | meaning |
    |---|---|
    | task | a name (see `esper tasks`) or a task of one's own |
    | envs | how many hosts |
    | episode_length | steps in an episode; the task's own number if not given |
    | seed | the same seed gives the same episodes, whatever `envs` is |
    | executor | "loop", "stacked", or "auto", which times both for a moment |
    | price | what adding as many parameters as the host has costs; of a range, each episode draws |
    | budget | the most parameters that all seeds of a host together may add |
    | reward | the family of rewards and its numbers; the change of the objective by default |
    """
    chosen = find_task(task) if isinstance(task, str) else task
    settings = EpisodeSettings(length=episode_length, price=price, budget=budget)
    population = Population(chosen, envs, settings, executor=executor, hub=hub)
    return GrowthEnv(population, signals_to_features, make_reward(reward), seed)
