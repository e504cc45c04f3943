"""The world of a run: hosts of several tasks side by side, seen by the controller as one batch of environments."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from esper.kasmina import ActionMasks
from esper.leyline import HEAD_NAMES, InputError
from esper.simic.control import Masks, signals_to_features
from esper.simic.rewards import RewardConfig, make_reward
from esper.simic.training.config import TrainingConfig
from esper.tolaria import EpisodeResult, EpisodeSettings, GrowthEnv, Population, episode_seed, find_task


def masks_by_head(masks: ActionMasks) -> Masks:
    """Masks as the agent takes them."""
    return {name: getattr(masks, name) for name in HEAD_NAMES}


@dataclass(frozen=True, slots=True)
class Transition:
    """What one step of all hosts of a world brought; `[N]` but for observations and masks."""

    observations: Tensor
    masks: Masks
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    components: Mapping[str, Tensor]
    """The named terms of the rewards."""


class GrowthWorld(Protocol):
    """What a run collects its rounds from."""

    num_envs: int
    tasks: tuple[str, ...]

    def reset(self, round_index: int) -> tuple[Tensor, Masks]:
        """Begin the episodes of a round, which follow from the world's seed and the number of the round."""

    def step(self, actions: Tensor) -> Transition:
        """Take one action per host."""

    def results(self) -> dict[str, list[EpisodeResult]]:
        """What the episodes of each task ended with; all are over."""

    def close(self) -> None:
        """Let go of everything."""


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """One task's hosts, told in plain data, so that any process can build them."""

    task: str
    envs: int
    first_host: int
    """Number of its first host among all hosts of the run: episodes are seeded by it."""
    settings: EpisodeSettings
    executor: str
    reward: RewardConfig
    seed: int

    def build(self) -> GrowthEnv:
        """The environment."""
        population = Population(find_task(self.task), self.envs, self.settings, executor=self.executor)
        return GrowthEnv(population, signals_to_features, make_reward(self.reward), self.seed)

    def seeds(self, round_index: int) -> list[int]:
        """The seeds of its episodes in a round."""
        return [episode_seed(self.seed, self.first_host + host, round_index) for host in range(self.envs)]


def env_specs(config: TrainingConfig) -> list[EnvSpec]:
    """The environments of a run, one per task."""
    return [
        EnvSpec(
            task,
            config.envs,
            index * config.envs,
            config.episode_settings(),
            config.executor,
            config.reward,
            config.seed,
        )
        for index, task in enumerate(config.tasks)
    ]


class LocalWorld:
    """All hosts in this process."""

    def __init__(self, specs: Sequence[EnvSpec]) -> None:
        self.tasks = tuple(spec.task for spec in specs)
        self._specs = list(specs)
        self._envs = [spec.build() for spec in specs]
        slots = {env.population.table.shape[1] for env in self._envs}
        if len(slots) > 1:
            raise InputError(f"tasks must have hosts with the same number of slots; these have {sorted(slots)}")
        self._sizes = [env.num_envs for env in self._envs]
        self.num_envs = sum(self._sizes)

    def reset(self, round_index: int) -> tuple[Tensor, Masks]:
        """Begin the episodes of a round."""
        specs = zip(self._specs, self._envs, strict=True)
        parts = [env.reset(spec.seeds(round_index)) for spec, env in specs]
        return torch.cat([obs for obs, _ in parts]), self._join([masks_by_head(masks) for _, masks in parts])

    def step(self, actions: Tensor) -> Transition:
        """Take one action per host."""
        steps = [env.step(part) for env, part in zip(self._envs, actions.split(self._sizes), strict=True)]
        names = steps[0].info.payment.components
        return Transition(
            torch.cat([step.observations for step in steps]),
            self._join([masks_by_head(step.masks) for step in steps]),
            torch.cat([step.rewards for step in steps]).to(torch.float32),
            torch.cat([step.terminated for step in steps]),
            torch.cat([step.truncated for step in steps]),
            {name: torch.cat([step.info.payment.components[name] for step in steps]) for name in names},
        )

    def results(self) -> dict[str, list[EpisodeResult]]:
        """What the episodes ended with."""
        return {task: env.population.results(test=False) for task, env in zip(self.tasks, self._envs, strict=True)}

    def close(self) -> None:
        """Nothing is held."""

    @staticmethod
    def _join(parts: Sequence[Masks]) -> Masks:
        return {name: torch.cat([part[name] for part in parts]) for name in HEAD_NAMES}


MakeWorld = Callable[[TrainingConfig], GrowthWorld]


def make_world(config: TrainingConfig) -> GrowthWorld:
    """The world that a config asks for."""
    return LocalWorld(env_specs(config))
