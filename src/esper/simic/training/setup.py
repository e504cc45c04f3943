"""What a run is made of: hosts, in a form that can be sent to workers, and the agent; checked before it begins."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import torch

from esper.kasmina import UNLIMITED, catalogue_names
from esper.leyline import DEFAULT_PRICE, InputError, OtherCatalogueError, SlotConfig, unknown_name
from esper.nissa import Hub
from esper.simic.agent.ppo import PPOAgent
from esper.simic.config import TrainingConfig, WorldConfig
from esper.simic.config.reward import RewardConfig
from esper.simic.config.training import Architecture
from esper.simic.control.observing import observer, state_dim
from esper.simic.rewards import make_reward
from esper.simic.search import SearchJob, SearchSettings
from esper.tamiyo import controller_names
from esper.tasks import SharedData, Task, find_task
from esper.tolaria import (
    ComputeSettings,
    EpisodeSettings,
    GrowthEnv,
    Population,
    Shard,
    TrackerSettings,
    WorkerPool,
    choose_executor,
    executor_names,
)
from esper.tolaria.compute import find_device

SEARCH = "search"
"""The teacher that follows the best plans of a search."""


@dataclass(frozen=True, slots=True)
class EnvRecipe:
    """Everything that making hosts needs, in a form that can be sent to workers."""

    task: str | Task
    settings: EpisodeSettings
    seed: int
    executor: str
    reward: RewardConfig | None
    architecture: Architecture = "flat"
    """Whose observations are made."""
    catalogue: dict[str, list[str]] = field(default_factory=catalogue_names)
    """The blueprints where the recipe was made; a worker has to know the same."""
    data: SharedData | None = None
    """The task's data, for workers, if they need not load it themselves."""

    def __call__(self, shard: Shard, hub: Hub) -> GrowthEnv:
        """The hosts of `shard`."""
        if self.catalogue != catalogue_names():
            raise OtherCatalogueError(
                "a worker knows other blueprints than the process that started it; register them at the top of the "
                "script or of a module that it imports, where workers register them too"
            )
        task = find_task(self.task) if isinstance(self.task, str) else self.task
        if self.data is not None:
            self.data.adopt(task)
        population = Population(task, shard.num_hosts, self.settings, executor=self.executor, hub=hub)
        reward = make_reward(self.reward, hub)
        return GrowthEnv(population, observer(self.architecture), reward, self.seed, first_host=shard.first_host)


def make_pool(recipe: EnvRecipe, num_hosts: int, workers: int, seed: int = 0, *, hub: Hub | None = None) -> WorkerPool:
    """The hosts of a recipe in workers, all of which read one copy of the data."""
    task = find_task(recipe.task) if isinstance(recipe.task, str) else recipe.task
    with suppress(OSError):  # where no file can be written, each worker loads the data
        recipe = replace(recipe, data=SharedData(task))
    return WorkerPool(recipe, num_hosts, workers, seed, hub=hub)


def episode_settings(world: WorldConfig) -> EpisodeSettings:
    """How the episodes of a world run."""
    return EpisodeSettings(
        world.episode_length,
        world.price,
        UNLIMITED if world.budget is None else world.budget,
        world.batches_per_epoch,
        world.batch_size,
        world.host_lr,
        world.germinate_when_stable,
        flop_price=world.flop_price,
        seed_lr_scale=world.seed_lr_scale,
        tracker=TrackerSettings(stable_improvement=world.stable_improvement, stable_epochs=world.stable_epochs),
        compute=ComputeSettings(world.precision, world.compile_hosts, world.host_devices),
    )


def search_job(config: TrainingConfig, folder: Path) -> SearchJob:
    """The search for plans on the tasks of a run, kept in `folder`, at the prices of its episodes."""
    world, lessons = config.world, config.lessons
    low, high = world.price if isinstance(world.price, tuple) else (world.price, world.price)
    middle = DEFAULT_PRICE if low < DEFAULT_PRICE < high else math.sqrt(low * high)
    settings = SearchSettings(
        episodes=lessons.search_episodes,
        prices=tuple(sorted({low, middle, high})),
        final_seeds=lessons.search_final_seeds,
        seed=config.seed if lessons.search_seed is None else lessons.search_seed,
    )
    # Merit and price are for controllers that look at them; plans do not, and rent is known without playing. What a
    # smaller budget forbids is left out when decisions are judged.
    episode = replace(episode_settings(world), merit=False, price=DEFAULT_PRICE)
    if isinstance(world.budget, tuple):
        episode = replace(episode, budget=UNLIMITED)
    return SearchJob(world.tasks, folder, settings, episode, world.executor)


def require_known(config: TrainingConfig) -> None:
    """Refuse names of tasks, controllers or devices that do not exist, and settings that do not go together."""
    teacher, known = config.lessons.teacher, (*controller_names(), SEARCH)
    if teacher is not None and teacher not in known:
        raise unknown_name("lessons.teacher", teacher, known)
    if teacher == SEARCH:
        search_job(config, Path())  # refuses prices and seeds that cannot be searched with
    for phase in range(len(config.world.curriculum) + 1):
        world = config.world.in_phase(phase)
        for task in world.tasks:
            find_task(task)
        episode_settings(world).compute.check_executor(world.executor)


def settled(config: TrainingConfig) -> TrainingConfig:
    """`config` with one executor in place of "auto": timed anew, a resumed run might choose another one."""
    require_known(config)
    world = config.world
    if world.executor != "auto":
        return config
    # Each worker runs its share of the hosts of one task: that many are timed.
    hosts = math.ceil(world.envs / max(1, world.workers // len(world.tasks)))
    compute = episode_settings(world).compute
    tasks = {*world.tasks, *(task for phase in world.curriculum for task in phase.tasks or ())}
    chosen = {choose_executor("auto", find_task(task), hosts, compute) for task in sorted(tasks)}
    # One for all tasks: the most general of what was chosen can run all of them.
    executor = next(name for name in executor_names() if name in chosen)
    return replace(config, world=replace(world, executor=executor))


def require_ready(config: TrainingConfig) -> int:
    """Refuse a config that cannot be run here, before anything is written; returns the number of slots of its hosts.

    One host of every task, those of the curriculum too, is made as the run would make it: that needs its data, its
    devices, and an executor that can run it.
    """
    require_known(config)
    find_device(config.learner.device)
    slots: dict[str, int] = {}
    kinds: dict[str, set[str]] = {}
    with torch.random.fork_rng(devices=[]):
        for phase in range(len(config.world.curriculum) + 1):
            world = config.world.in_phase(phase)
            for task in set(world.tasks) - set(slots):
                population = Population(find_task(task), 1, episode_settings(world), executor=world.executor)
                slots[task] = population.table.shape[1]
                named = catalogue_names(site.shape.family for site in population.situation.sites)
                kinds[task] = {name for names in named.values() for name in names}
    require_shared_kinds(kinds, config.learner.architecture)
    return slots_together(slots, config.learner.architecture)


def require_shared_kinds(kinds: Mapping[str, set[str]], architecture: Architecture) -> None:
    """Refuse tasks whose hosts have no kind of seed in common, if the policy knows kinds by their number."""
    for one, other in combinations(kinds, 2):
        if architecture == "flat" and not kinds[one] & kinds[other]:
            raise InputError(
                f"hosts of {one} and {other} share no kind of seed: {', '.join(sorted(kinds[one]))} there and "
                f"{', '.join(sorted(kinds[other]))} here; train one controller for each, or take "
                "learner.architecture=pointing, which knows kinds by what they do"
            )


def slots_together(slots: Mapping[str, int], architecture: Architecture) -> int:
    """The number of slots that hosts of these tasks are shown with: a pointing network takes the largest."""
    if architecture == "flat" and len(set(slots.values())) > 1:
        counts = ", ".join(f"{task} {count}" for task, count in sorted(slots.items()))
        raise InputError(
            f"hosts must have the same number of slots for learner.architecture=flat; these have: {counts}; "
            "learner.architecture=pointing takes any"
        )
    return max(slots.values())


def round_sizes(config: TrainingConfig) -> dict[str, int | None]:
    """The sizes of an agent that follow from the run: see `PPOAgent`."""
    world = config.world
    length = max(world.episode_length or find_task(task).episode_length for task in world.tasks)
    steps = int(config.learner.entropy_decay * config.rounds * world.episodes * length)
    decay = max(1, steps) if config.learner.entropy_decay > 0 else None
    return {"num_envs": world.episodes, "max_steps": length, "decay_steps": decay}


def make_agent(config: TrainingConfig, num_slots: int) -> PPOAgent:
    """A fresh agent for hosts with this many slots; torch's random state decides its weights."""
    agent = PPOAgent(
        config.learner,
        state_dim=state_dim(config.learner.architecture, num_slots),
        slot_config=SlotConfig.of_size(num_slots),
        normalize=True,
        **round_sizes(config),  # type: ignore[arg-type]
    )
    agent.policy.add_bias("op", config.learner.op_bias)
    return agent
