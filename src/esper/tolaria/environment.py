"""The growth environment: a population seen through an observation and paid by a reward, both given from above."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from esper.kasmina import ActionMasks
from esper.leyline import InputError
from esper.tolaria.population import Population
from esper.tolaria.records import EpisodeResult, Outcome, Situation

Observe = Callable[[Situation], Tensor]
"""From what a controller may know to observations `[N, D]`."""


class Payment(Protocol):
    """What a reward function returns."""

    @property
    def components(self) -> Mapping[str, Tensor]:
        """`[N]` each: the named terms."""

    @property
    def total(self) -> Tensor:
        """`[N]`: their sum."""


Reward = Callable[[Outcome], Payment]


@dataclass(frozen=True, slots=True)
class StepInfo:
    """What a step brought beside its reward."""

    outcome: Outcome
    payment: Payment
    dropped: Tensor
    """`[N]` bool: the worker of this host was lost and with it the episode; what is observed begins another one."""


class Step(NamedTuple):
    """The answer to `GrowthEnv.step`.

    | tensor | shape | meaning |
    |---|---|---|
    | observations | `[N, D]` | what to act on next |
    | rewards | `[N]` | |
    | terminated | `[N]` bool | the governor ended the episode |
    | truncated | `[N]` bool | the episode reached its length |
    | masks | op `[N, O]`, slot `[N, O, S]`, blueprint `[N, S, B]`, blend `[N, L]` | what is legal next |
    """

    observations: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    masks: ActionMasks
    info: StepInfo


def episode_seed(seed: int, host: int, episode: int) -> int:
    """The seed of one episode of one host; it does not depend on how many hosts there are."""
    return int(np.random.SeedSequence([seed, host, episode]).generate_state(1, np.uint64)[0] >> np.uint64(1))


class Environment(ABC):
    """N hosts to act on, wherever they run: a `GrowthEnv` here, a `WorkerPool` in other processes.

    Episodes are numbered, and seeded from the environment's seed, the host and that number. Hosts are counted from
    `first_host`, so that a part of a larger environment has the episodes that are its own there.
    """

    def __init__(self, num_envs: int, seed: int, first_host: int = 0) -> None:
        self.num_envs = num_envs
        self.first_host = first_host
        self.dropped_episodes = 0
        """Unfinished episodes that were lost with their workers."""
        self._episodes = torch.zeros(num_envs, dtype=torch.int64)
        self.reseed(seed)

    @property
    @abstractmethod
    def situation(self) -> Situation:
        """What is known of the hosts now."""

    @property
    @abstractmethod
    def observations(self) -> Tensor:
        """`[N, D]`: the same as a learned controller sees it."""

    @abstractmethod
    def reset(
        self, seeds: Sequence[int] | None = None, *, hosts: Sequence[int] | None = None
    ) -> tuple[Tensor, ActionMasks]:
        """Begin new episodes, of all hosts or of `hosts`, with seeds of their own unless `seeds` are given.

        Returns observations and masks of all hosts.
        """

    @abstractmethod
    def step(self, actions: Tensor) -> Step:
        """Take `actions [N, 4]`, one legal action per host; an illegal one raises and changes nothing."""

    @abstractmethod
    def results(self) -> list[EpisodeResult]:
        """What the episodes ended with, test split included; all have to be over."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that going on needs, in the middle of an episode too."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, bit for bit."""

    @abstractmethod
    def close(self) -> None:
        """Give back what running hosts takes; nothing else can be asked afterwards."""

    def reseed(self, seed: int) -> None:
        """Number the episodes that begin from now on from `seed`, starting with the first."""
        if seed < 0:
            raise InputError(f"seed must be 0 or more; got {seed}")
        self.seed = seed
        self._episodes.zero_()

    def _next_seeds(self, hosts: Sequence[int]) -> list[int]:
        return [episode_seed(self.seed, self.first_host + host, int(self._episodes[host])) for host in hosts]


class GrowthEnv(Environment):
    """N hosts that advance together. A host whose episode is over waits until it is reset."""

    def __init__(
        self, population: Population, observe: Observe, reward: Reward, seed: int = 0, *, first_host: int = 0
    ) -> None:
        super().__init__(population.num_hosts, seed, first_host)
        self.population = population
        self._observe = observe
        self._reward = reward

    @property
    def situation(self) -> Situation:
        return self.population.situation

    @property
    def observations(self) -> Tensor:
        return self._observe(self.situation)

    def reset(
        self, seeds: Sequence[int] | None = None, *, hosts: Sequence[int] | None = None
    ) -> tuple[Tensor, ActionMasks]:
        chosen = list(range(self.num_envs) if hosts is None else hosts)
        self.population.start(self._next_seeds(chosen) if seeds is None else seeds, chosen)
        self._episodes[chosen] += 1
        situation = self.population.situation
        return self._observe(situation), situation.masks

    def step(self, actions: Tensor) -> Step:
        return self._paid(self.population.step(actions))

    def idle(self, actions: Tensor) -> Step:
        """The answer of hosts that all wait, or that have only just begun: nothing happened."""
        situation = self.situation
        no = torch.zeros(self.num_envs, dtype=torch.bool)
        unknown = torch.full((self.num_envs,), torch.nan)
        added = situation.table.added_params, situation.planted_flops.sum(1)
        return self._paid(Outcome(situation, actions, situation, no, no, no, unknown, unknown, *added))

    def _paid(self, outcome: Outcome) -> Step:
        payment = self._reward(outcome)
        return Step(
            self._observe(outcome.after),
            payment.total,
            outcome.terminated,
            outcome.truncated,
            outcome.after.masks,
            StepInfo(outcome, payment, torch.zeros(self.num_envs, dtype=torch.bool)),
        )

    def results(self) -> list[EpisodeResult]:
        return self.population.results()

    def close(self) -> None:
        """Nothing to give back: these hosts run in this process."""

    def state_dict(self) -> dict[str, Any]:
        return {"population": self.population.state_dict(), "episodes": self._episodes.clone(), "seed": self.seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.population.load_state_dict(state["population"])
        self._episodes, self.seed = state["episodes"].clone(), state["seed"]
