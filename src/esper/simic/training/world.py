"""The world of a run: hosts of several tasks side by side, seen by the controller as one batch of environments."""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from esper.kasmina import ActionMasks
from esper.leyline import HEAD_NAMES, InputError, Severity, Stage, objective
from esper.nissa import Hub, MemorySink
from esper.simic.control import Masks
from esper.simic.training.config import TrainingConfig
from esper.simic.training.recipe import EnvRecipe
from esper.tamiyo import Controller, make_controller
from esper.tolaria import (
    Environment,
    Shard,
    Situation,
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
    score: Tensor
    """Of the committed network on validation; NaN before the episode's end."""
    price: Tensor
    blueprint: Tensor
    """`[N, S]`: id of the seed's; 0 where there is no seed."""
    seed_grad_norm: Tensor
    """`[N, S]`: in this epoch; NaN where there is no seed."""
    contribution: Tensor
    """`[N, S]`: in this epoch; NaN where none was measured."""


class GrowthWorld:
    """The hosts of all tasks of a run, in this process or shared out over workers.

    With twins, every host has one that starts from the same seed and is left alone, and what the twin has earned is
    taken off its host's last reward. A policy cannot change its twins, so this changes no comparison between policies;
    it removes the luck of the seed, which is larger than what a decision brings. It is done at the end, because step
    by step the twin's own ups and downs, which nobody observes, would only add noise.
    """

    def __init__(self, config: TrainingConfig, hub: Hub | None = None) -> None:
        self.tasks = config.tasks
        self.twins = config.twins
        self._seed = config.seed
        self._per_task = config.envs
        self.num_envs = config.envs * len(config.tasks)
        slots = {len(find_task(task).build_host().slot_sites) for task in config.tasks}
        if len(slots) > 1:
            raise InputError(f"tasks must have hosts with the same number of slots; these have {sorted(slots)}")
        self.num_slots = slots.pop()
        self._relays = [_Relay(hub or Hub(), index * config.envs, config) for index in range(len(config.tasks))]
        self._envs = _make_envs(config, [relay.source for relay in self._relays])
        self._earned = torch.zeros(self.num_envs)
        """`[N]`: what each twin has earned in this round."""
        # Tasks in workers of their own run at the same time: the threads only wait for them.
        self._threads = ThreadPoolExecutor(len(self._envs)) if config.workers > 1 else None

    def reset(self, round_index: int) -> tuple[Tensor, Masks]:
        """Begin the episodes of a round, which follow from the run's seed and the number of the round."""
        self._earned.zero_()
        for relay in self._relays:
            relay.round = round_index + 1
        observations, masks = [], []
        for index, env in enumerate(self._envs):
            first = index * self._per_task
            seeds = [episode_seed(self._seed, first + host, round_index) for host in range(self._per_task)]
            seen, legal = env.reset([seed for seed in seeds for _ in range(_TWO)] if self.twins else seeds)
            observations.append(self._own(seen))
            masks.append({name: self._own(mask) for name, mask in masks_by_head(legal).items()})
        self._pass_on_events()
        return torch.cat(observations), _join(masks)

    def step(self, actions: Tensor) -> Transition:
        """Take one action per host."""
        shares = [self._with_twins(part) for part in actions.split(self._per_task)]
        run = map if self._threads is None else self._threads.map
        steps = list(run(lambda env, share: env.step(share), self._envs, shares))
        self._pass_on_events()
        parts = [self._transition(step) for step in steps]
        names = [name for name in Transition.__dataclass_fields__ if name not in ("masks", "components")]
        joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        if self.twins:
            self._earned += torch.cat([step.rewards[1::_TWO] for step in steps])
            joined["rewards"] -= torch.where(joined["terminated"] | joined["truncated"], self._earned, 0.0)
        components = {name: torch.cat([part.components[name] for part in parts]) for name in parts[0].components}
        return Transition(masks=_join([part.masks for part in parts]), components=components, **joined)

    def controllers(self, name: str) -> list[Controller]:
        """The controller `name` once for each task, at the start of a round."""
        made = [make_controller(name) for _ in self._envs]
        for controller, env in zip(made, self._envs, strict=True):
            controller.reset(env.num_envs, self._seed)
        return made

    def decide(self, controllers: Sequence[Controller]) -> Tensor:
        """What `controllers`, one for each task, would do now: `[N, 4]`."""
        pairs = zip(controllers, self._envs, strict=True)
        return torch.cat([self._own(controller.decide(env.situation)) for controller, env in pairs])

    def by_task(self, values: Tensor) -> dict[str, Tensor]:
        """`values [N]`, task by task."""
        return dict(zip(self.tasks, values.split(self._per_task), strict=True))

    def situations(self) -> dict[str, Situation]:
        """What is known of the hosts of each task now, twins included."""
        return {task: env.situation for task, env in zip(self.tasks, self._envs, strict=True)}

    def tell_from(self, least: Severity) -> None:
        """Have hosts tell of nothing below `least`, from their next episodes on."""
        for relay in self._relays:
            relay.source.least = least

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

    def _pass_on_events(self) -> None:
        for relay in self._relays:
            relay.pass_on()

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
            score=self._own(outcome.final_score),
            price=self._own(outcome.after.price),
            blueprint=self._own(table.blueprint),
            seed_grad_norm=self._own(torch.where(table.occupied, table.seed_grad_norm, torch.nan)),
            contribution=self._own(table.contribution),
        )


class _Relay:
    """Tells a hub what happens to the hosts of one task, numbered as in the world; twins, which wait, are left out.

    Events are passed on together, after a step, because tasks step in threads of their own.
    """

    def __init__(self, hub: Hub, first: int, config: TrainingConfig) -> None:
        self._hub = hub
        self._first = first
        self._twins = config.twins
        self._told = MemorySink()
        least = Severity.DEBUG if config.telemetry == "debug" else Severity.INFO
        self.source = Hub([self._told] if hub.listening else [], least)
        """What the task's hosts tell."""
        self.round = 0

    def pass_on(self) -> None:
        """Hand over what has been told since the last time."""
        for event in self._told.events:
            host, is_twin = divmod(event.env_id or 0, _TWO) if self._twins else (event.env_id or 0, 0)
            if not is_twin:
                self._hub.emit(replace(event, env_id=self._first + host, round=self.round))
        self._told.events.clear()


def settled(config: TrainingConfig) -> TrainingConfig:
    """`config` with one executor in place of "auto": timed anew, a resumed run might choose another one."""
    if config.executor != "auto":
        return config
    hosts = _hosts_per_worker(config)
    tasks = {*config.tasks, *(task for phase in config.curriculum for task in phase.tasks or ())}
    chosen = {choose_executor("auto", find_task(task), hosts) for task in sorted(tasks)}
    return replace(config, executor=chosen.pop() if len(chosen) == 1 else "loop")


def _hosts_per_worker(config: TrainingConfig) -> int:
    hosts = config.envs * (_TWO if config.twins else 1)
    return math.ceil(hosts / max(1, config.workers // len(config.tasks)))


def _make_envs(config: TrainingConfig, hubs: Sequence[Hub]) -> list[Environment]:
    """One environment per task; workers are shared out among them, at least one to each."""
    hosts = config.envs * (_TWO if config.twins else 1)
    workers = min(hosts, max(1, config.workers // len(config.tasks)))
    envs: list[Environment] = []
    for task, hub in zip(config.tasks, hubs, strict=True):
        recipe = EnvRecipe(task, config.episode_settings(), config.seed, config.executor, config.reward)
        pooled = config.workers > 1
        envs.append(WorkerPool(recipe, hosts, workers, hub=hub) if pooled else recipe(Shard(0, hosts), hub))
    return envs


def _join(parts: Sequence[Masks]) -> Masks:
    return {name: torch.cat([part[name] for part in parts]) for name in HEAD_NAMES}
