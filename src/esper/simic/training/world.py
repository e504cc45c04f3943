"""The world of a run: hosts of several tasks side by side, seen by the controller as one batch of environments."""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from esper.kasmina import ActionMasks
from esper.leyline import HEAD_NAMES, InputError, Stage, objective
from esper.nissa import Hub
from esper.simic.control import Masks
from esper.simic.training.config import TrainingConfig
from esper.simic.training.recipe import EnvRecipe
from esper.tolaria import (
    Environment,
    Shard,
    Step,
    WorkerPool,
    choose_executor,
    episode_seed,
    find_task,
)

_TWO = 2
"""Hosts per episode where each has a twin."""


def masks_by_head(masks: ActionMasks) -> Masks:
    """Masks as the agent takes them."""
    return {name: getattr(masks, name) for name in HEAD_NAMES}


@dataclass(frozen=True, slots=True)
class Transition:
    """What one step of all hosts of a world brought; `[N]` but for observations and masks."""

    observations: Tensor
    masks: Masks
    rewards: Tensor
    """Where hosts have twins, the last one is less what the twin has earned."""
    terminated: Tensor
    truncated: Tensor
    dropped: Tensor
    """Bool: the host was lost with its worker, and its episode with it."""
    components: Mapping[str, Tensor]
    """The named terms of the rewards, the twin's not taken off."""
    objective: Tensor
    """Of the committed network on validation; NaN before the episode's end."""
    twin_objective: Tensor
    """Of the twin; NaN before the episode's end and where there is none."""
    added_params: Tensor
    """That the network has at this time."""
    kept: Tensor
    """Seeds kept for good so far."""


class GrowthWorld:
    """The hosts of all tasks of a run, in this process or shared out over workers.

    With twins, every host has one that starts from the same seed and is left alone, and what the twin has earned is
    taken off its host's last reward. A policy cannot change its twins, so this changes no comparison between policies;
    it removes the luck of the seed, which is larger than what a decision brings. It is done at the end, because step
    by step the twin's own ups and downs, which nobody observes, would only add noise.
    """

    def __init__(self, config: TrainingConfig) -> None:
        self.tasks = config.tasks
        self.twins = config.twins
        self._seed = config.seed
        self._per_task = config.envs
        self.num_envs = config.envs * len(config.tasks)
        slots = {len(find_task(task).build_host().slot_sites) for task in config.tasks}
        if len(slots) > 1:
            raise InputError(f"tasks must have hosts with the same number of slots; these have {sorted(slots)}")
        self.num_slots = slots.pop()
        self._envs = _make_envs(config)
        self._earned = torch.zeros(self.num_envs)
        """`[N]`: what each twin has earned in this round."""
        # Tasks in workers of their own run at the same time: the threads only wait for them.
        self._threads = ThreadPoolExecutor(len(self._envs)) if config.workers > 1 else None

    def reset(self, round_index: int) -> tuple[Tensor, Masks]:
        """Begin the episodes of a round, which follow from the run's seed and the number of the round."""
        self._earned.zero_()
        observations, masks = [], []
        for index, env in enumerate(self._envs):
            first = index * self._per_task
            seeds = [episode_seed(self._seed, first + host, round_index) for host in range(self._per_task)]
            seen, legal = env.reset([seed for seed in seeds for _ in range(_TWO)] if self.twins else seeds)
            observations.append(self._own(seen))
            masks.append({name: self._own(mask) for name, mask in masks_by_head(legal).items()})
        return torch.cat(observations), _join(masks)

    def step(self, actions: Tensor) -> Transition:
        """Take one action per host."""
        shares = [self._with_twins(part) for part in actions.split(self._per_task)]
        run = map if self._threads is None else self._threads.map
        steps = list(run(lambda env, share: env.step(share), self._envs, shares))
        parts = [self._transition(step) for step in steps]
        names = [name for name in Transition.__dataclass_fields__ if name not in ("masks", "components")]
        joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        if self.twins:
            self._earned += torch.cat([step.rewards[1::_TWO] for step in steps])
            joined["rewards"] -= torch.where(joined["terminated"] | joined["truncated"], self._earned, 0.0)
        components = {name: torch.cat([part.components[name] for part in parts]) for name in parts[0].components}
        return Transition(masks=_join([part.masks for part in parts]), components=components, **joined)

    def by_task(self, values: Tensor) -> dict[str, Tensor]:
        """`values [N]`, task by task."""
        return dict(zip(self.tasks, values.split(self._per_task), strict=True))

    @property
    def dropped_episodes(self) -> int:
        """Unfinished episodes that were lost with their workers."""
        return sum(env.dropped_episodes for env in self._envs)

    def close(self) -> None:
        """End the workers."""
        for env in self._envs:
            env.close()
        if self._threads is not None:
            self._threads.shutdown()

    def _with_twins(self, actions: Tensor) -> Tensor:
        """Hosts and twins take turns; a twin waits."""
        if not self.twins:
            return actions
        return torch.stack([actions, torch.zeros_like(actions)], 1).flatten(0, 1)

    def _own(self, values: Tensor) -> Tensor:
        return values[::_TWO] if self.twins else values

    def _transition(self, step: Step) -> Transition:
        outcome, table = step.info.outcome, step.info.outcome.after.table
        ended = objective(outcome.final_score, outcome.final_params, outcome.after.host_params, outcome.after.price)
        rewards, dropped = step.rewards.to(torch.float32), step.info.dropped
        return Transition(
            observations=self._own(step.observations),
            masks={name: self._own(mask) for name, mask in masks_by_head(step.masks).items()},
            rewards=self._own(rewards),
            terminated=self._own(step.terminated),
            truncated=self._own(step.truncated),
            dropped=dropped[::_TWO] | dropped[1::_TWO] if self.twins else dropped,
            components={name: self._own(term) for name, term in step.info.payment.components.items()},
            objective=self._own(ended),
            twin_objective=ended[1::_TWO] if self.twins else torch.full_like(ended, torch.nan),
            added_params=self._own(table.added_params),
            kept=self._own((table.stage == Stage.FOSSILIZED).sum(1)),
        )


def settled(config: TrainingConfig) -> TrainingConfig:
    """`config` with one executor in place of "auto": timed anew, a resumed run might choose another one."""
    if config.executor != "auto":
        return config
    hosts = _hosts_per_worker(config)
    compute = config.episode_settings().compute
    chosen = {choose_executor("auto", find_task(task), hosts, compute) for task in config.tasks}
    return replace(config, executor=chosen.pop() if len(chosen) == 1 else "loop")


def _hosts_per_worker(config: TrainingConfig) -> int:
    hosts = config.envs * (_TWO if config.twins else 1)
    return math.ceil(hosts / max(1, config.workers // len(config.tasks)))


def _make_envs(config: TrainingConfig) -> list[Environment]:
    """One environment per task; workers are shared out among them, at least one to each."""
    hosts = config.envs * (_TWO if config.twins else 1)
    workers = min(hosts, max(1, config.workers // len(config.tasks)))
    envs: list[Environment] = []
    for task in config.tasks:
        recipe = EnvRecipe(task, config.episode_settings(), config.seed, config.executor, config.reward)
        envs.append(WorkerPool(recipe, hosts, workers) if config.workers > 1 else recipe(Shard(0, hosts), Hub()))
    return envs


def _join(parts: Sequence[Masks]) -> Masks:
    return {name: torch.cat([part[name] for part in parts]) for name in HEAD_NAMES}
