"""How hosts are made into an environment, in a form that can be sent to other processes."""

from dataclasses import dataclass, field

from esper.kasmina import catalogue_names
from esper.leyline import OtherCatalogueError
from esper.nissa import Hub
from esper.simic.control import signals_to_features
from esper.simic.rewards import Reward, RewardBreakdown, RewardConfig, emit_flags, make_reward
from esper.tasks import Task, find_task
from esper.tolaria import EpisodeSettings, GrowthEnv, Outcome, Population, Shard


@dataclass(frozen=True, slots=True)
class EnvRecipe:
    """Everything that making hosts needs, in a form that can be sent to workers."""

    task: str | Task
    settings: EpisodeSettings
    seed: int
    executor: str
    reward: RewardConfig | None
    catalogue: dict[str, list[str]] = field(default_factory=catalogue_names)
    """The blueprints where the recipe was made; a worker has to know the same."""

    def __call__(self, shard: Shard, hub: Hub) -> GrowthEnv:
        """The hosts of `shard`."""
        if self.catalogue != catalogue_names():
            raise OtherCatalogueError(
                "a worker knows other blueprints than the process that started it; register them at the top of the "
                "script or of a module that it imports, where workers register them too"
            )
        task = find_task(self.task) if isinstance(self.task, str) else self.task
        population = Population(task, shard.num_hosts, self.settings, executor=self.executor, hub=hub)
        reward = _reporting(make_reward(self.reward), hub)
        return GrowthEnv(population, signals_to_features, reward, self.seed, first_host=shard.first_host)


def _reporting(reward: Reward, hub: Hub) -> Reward:
    """`reward`, telling `hub` of seeds that look as if they were gaming their credit."""

    def reported(outcome: Outcome) -> RewardBreakdown:
        breakdown = reward(outcome)
        if hub.listening:
            emit_flags(breakdown.flags, outcome, hub)
        return breakdown

    return reported
