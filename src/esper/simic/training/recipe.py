"""How hosts are made into an environment, in a form that can be sent to other processes."""

from dataclasses import dataclass

from esper.nissa import Hub
from esper.simic.control import signals_to_features
from esper.simic.rewards import RewardConfig, make_reward
from esper.tolaria import EpisodeSettings, GrowthEnv, Population, Shard, Task, find_task


@dataclass(frozen=True, slots=True)
class EnvRecipe:
    """Everything that making hosts needs, in a form that can be sent to workers."""

    task: str | Task
    settings: EpisodeSettings
    seed: int
    executor: str
    reward: RewardConfig | None

    def __call__(self, shard: Shard, hub: Hub) -> GrowthEnv:
        """The hosts of `shard`."""
        task = find_task(self.task) if isinstance(self.task, str) else self.task
        population = Population(task, shard.num_hosts, self.settings, executor=self.executor, hub=hub)
        reward = make_reward(self.reward)
        return GrowthEnv(population, signals_to_features, reward, self.seed, first_host=shard.first_host)
