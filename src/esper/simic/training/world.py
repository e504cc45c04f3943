"""The world of a run: hosts of several tasks side by side, seen by the controller as one batch of environments."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.kasmina import ActionMasks, SlotTable, num_blueprints
from esper.leyline import (
    HEAD_NAMES,
    SEED_EXPLODING_GRADIENT,
    SEED_VANISHING_GRADIENT,
    Op,
    Severity,
    Stage,
    TelemetryEvent,
)
from esper.nissa import Hub, MemorySink
from esper.nissa.events import LESSON_ROUND
from esper.simic.config import FIRST_LESSON, TrainingConfig
from esper.simic.control import Masks
from esper.simic.control.anatomy import Anatomy
from esper.simic.control.regrets import Regrets
from esper.simic.search import PlanTeacher
from esper.simic.training.setup import EnvRecipe, episode_settings, make_pool, slots_together
from esper.tamiyo import Controller, make_controller
from esper.tasks import find_task
from esper.tolaria import Environment, Shard, Situation, Step, WorkerPool, episode_seed
from esper.tolaria.records import join


def masks_by_head(masks: ActionMasks) -> Masks:
    """Masks as the agent takes them."""
    return {name: getattr(masks, name) for name in HEAD_NAMES}


@dataclass(frozen=True, slots=True)
class Transition:
    """What one step of all hosts of a world brought; `[N]` but for observations, masks and table."""

    observations: Tensor
    masks: Masks
    rewards: Tensor
    """Where hosts have twins, the baseline that they give is subtracted from the last one."""
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
    score: Tensor
    """Of the committed network on validation; NaN before the episode's end."""
    price: Tensor
    table: SlotTable
    """The seeds after the step."""

    @property
    def over(self) -> Tensor:
        """Bool: the episode has ended."""
        return self.terminated | self.truncated


Teacher = str | Mapping[str, Controller]
"""The name of a controller, or one for each task."""


class GrowthWorld:
    """The hosts of all tasks of a run, in this process or shared out over workers.

    With twins, every host has one that starts from the same seed and is left alone, and a baseline is subtracted from
    its host's last reward: the mean return of the twins of its task, plus `twin_weight` of how far its own twin is from
    that. A policy cannot change its twins, so this control variate changes no comparison between policies; it removes
    some of the luck of the seed, which is larger than what a decision brings. A weight of 1 would add variance instead:
    a host that grows and its twin share their start, and only a part of their fortune. It is done at the end, because
    step by step the twins' own ups and downs, which nobody observes, would only add noise. Twins are trained once:
    after `distinct_rounds` rounds the same seeds come round again, and what their twins earned is known.
    """

    def __init__(self, config: TrainingConfig, hub: Hub | None = None, least: Severity = Severity.INFO) -> None:
        world = config.world
        self.tasks = world.tasks
        self._seed = config.seed
        self._per_task = world.envs
        self.num_envs = world.episodes
        self._architecture = config.learner.architecture
        slots = {task: len(find_task(task).build_host().slot_sites) for task in world.tasks}
        self.num_slots = slots_together(slots, self._architecture)
        """Hosts with fewer are padded to so many in all that the agent sees."""
        # One environment per task. Tasks step in threads of their own: what their hosts tell waits for the others.
        self._hub = hub or Hub()
        self._told = [MemorySink() for _ in world.tasks]
        self._hubs = [
            Hub([told] if self._hub.listening else [], least).bind(first_host=index * world.envs)
            for index, told in enumerate(self._told)
        ]
        self._envs = _make_envs(config, self._hubs)
        # Twins.
        self._distinct = world.distinct_rounds if world.twins else None
        self._twin_weight = world.twin_weight
        self._known: dict[int, _Alone] = {}
        """Per round of distinct seeds: what its twins came to. Not saved: a resumed run measures the same again."""
        self._alone = _Alone.of_none(self.num_envs)
        # Tasks in workers of their own run at the same time: the threads only wait for them.
        pooled = any(isinstance(env, WorkerPool) for env in self._envs)
        self._threads = ThreadPoolExecutor(len(self._envs)) if pooled else None

    def reset(
        self, index: int, after_step: Callable[[], None] = lambda: None, *, lesson: bool = False
    ) -> tuple[Tensor, Masks]:
        """Begin the episodes of a round or lesson, which follow from the run's seed and its number, counted from 0.

        If the twins of these episodes are not known yet, they are trained first; `after_step` is called after every
        step of theirs, and may raise.
        """
        self._hub = self._hub.bind(round_=LESSON_ROUND if lesson else index + 1)
        # Seeds of rounds come round again where there are twins; those of lessons never do.
        episode = FIRST_LESSON + index if lesson else index
        if self._distinct is not None:
            episode = episode if lesson else index % self._distinct
            self._alone = self._twins_of(episode, after_step)
        begun = self._begin(episode)
        self._pass_on_events()
        return begun

    def _begin(self, episode: int) -> tuple[Tensor, Masks]:
        observations, masks = [], []
        for index, env in enumerate(self._envs):
            first = index * self._per_task
            seen, legal = env.reset([episode_seed(self._seed, first + host, episode) for host in range(self._per_task)])
            observations.append(self._padded(seen))
            masks.append(_padded_masks(masks_by_head(legal), self.num_slots))
        return torch.cat(observations), join(masks)

    def _twins_of(self, episode: int, after_step: Callable[[], None]) -> "_Alone":
        if episode in self._known:
            return self._known[episode]
        alone = self._play_alone(episode, after_step)
        if not alone.dropped.any():
            self._known[episode] = alone
        return alone

    def _play_alone(self, episode: int, after_step: Callable[[], None]) -> "_Alone":
        """Train the hosts of these episodes without any seed; nothing is told of it."""
        # Actions of zeros wait.
        self._begin(episode)
        alone, running = _Alone.of_none(self.num_envs), torch.ones(self.num_envs, dtype=torch.bool)
        while running.any():
            step = self._advance(torch.zeros(self.num_envs, len(HEAD_NAMES), dtype=torch.int64))
            ended = running & step.over
            alone.earned += torch.where(running, step.rewards, 0.0)
            alone.objective[ended] = step.objective[ended].to(torch.float32)
            alone.dropped |= running & step.dropped
            running = running & ~(ended | step.dropped)
            self._take_events()
            after_step()
        return alone

    def step(self, actions: Tensor) -> Transition:
        """Take one action per host."""
        step, alone = self._advance(actions), self._alone
        self._pass_on_events()
        return replace(
            step,
            rewards=step.rewards - torch.where(step.over, self._baseline(alone), 0.0),
            dropped=step.dropped | alone.dropped,
            twin_objective=torch.where(step.over, alone.objective, torch.nan),
        )

    def _baseline(self, alone: "_Alone") -> Tensor:
        """`[N]`: from the returns of those twins of each task that were not lost."""
        whole = ~alone.dropped
        # The mean over the twins of a task, for each of its hosts.
        sums, counts = (
            column.view(-1, self._per_task).sum(1) for column in (torch.where(whole, alone.earned, 0.0), whole)
        )
        means = (sums / counts.clamp(min=1)).repeat_interleave(self._per_task)
        return torch.where(whole, means + self._twin_weight * (alone.earned - means), means)

    def _advance(self, actions: Tensor) -> Transition:
        """One step of all hosts, twins not considered."""
        # All tasks step at the same time where they have workers.
        run = map if self._threads is None else self._threads.map
        steps = run(lambda env, share: env.step(share), self._envs, actions.split(self._per_task))
        return join([self._transition(step) for step in steps])  # hosts of all tasks as one batch

    def _padded(self, rows: Tensor) -> Tensor:
        """Observations of one task's hosts as those of hosts with as many slots as any."""
        return Anatomy(self.num_slots, num_blueprints()).pad(rows) if self._architecture == "pointing" else rows

    def _transition(self, step: Step) -> Transition:
        outcome, after = step.info.outcome, step.info.outcome.after
        objective = outcome.final_score - after.rent(outcome.final_params, outcome.final_flops)
        return Transition(
            observations=self._padded(step.observations),
            masks=_padded_masks(masks_by_head(step.masks), self.num_slots),
            rewards=step.rewards.to(torch.float32),
            terminated=step.terminated,
            truncated=step.truncated,
            dropped=step.info.dropped,
            components=step.info.payment.components,
            objective=objective,
            twin_objective=torch.full_like(objective, torch.nan),
            score=outcome.final_score,
            price=after.price,
            table=after.table.padded(self.num_slots),
        )

    def controllers(self, teacher: Teacher) -> list[Controller]:
        """The controllers of a teacher, one for each task, at the start of a round."""
        made = [make_controller(teacher) if isinstance(teacher, str) else teacher[task] for task in self.tasks]
        for controller, env in zip(made, self._envs, strict=True):
            controller.reset(env.num_envs, self._seed)
        return made

    def decide(self, controllers: Sequence[Controller]) -> Tensor:
        """What `controllers`, one for each task, would do now: `[N, 4]`."""
        pairs = zip(controllers, self._envs, strict=True)
        return torch.cat([controller.decide(env.situation) for controller, env in pairs])

    def regrets(self, teachers: Mapping[str, PlanTeacher], num_steps: int) -> Regrets:
        """What `teachers` found that decisions of all hosts cost in these episodes: `[N, T, ...]`, padded."""
        padded = []
        for task in self.tasks:
            steps = teachers[task].regrets
            by_step = [torch.stack(parts, 1) for parts in zip(*steps, strict=True)]
            missing = self.num_slots - by_step[2].shape[-1]
            pads = ((), (0, 0, 0, 0, 0, missing), (0, missing), ())
            late = (0, num_steps - len(steps))
            rows = (
                F.pad(part, (*pad, *(0,) * (2 * (part.dim() - 2) - len(pad)), *late))
                for part, pad in zip(by_step, pads, strict=True)
            )
            padded.append(Regrets(*rows))
        return join(padded)

    def by_task(self, values: Tensor) -> dict[str, Tensor]:
        """`values [N]`, task by task."""
        return dict(zip(self.tasks, values.split(self._per_task), strict=True))

    def situations(self) -> dict[str, Situation]:
        """What is known of the hosts of each task now."""
        return {task: env.situation for task, env in zip(self.tasks, self._envs, strict=True)}

    def tell_from(self, least: Severity) -> None:
        """Have hosts tell of nothing below `least`, from their next episodes on."""
        for hub in self._hubs:
            hub.least = least

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
        for event in self._take_events():
            self._hub.emit(event)

    def _take_events(self) -> list[TelemetryEvent]:
        """What hosts have told since the last time, task by task, whichever came first."""
        return [event for told in self._told for event in told.take()]


@dataclass(slots=True)
class _Alone:
    """What the hosts of a round come to when they are left alone; all `[N]`."""

    earned: Tensor
    """The sum of their rewards."""
    objective: Tensor
    dropped: Tensor
    """Bool: lost with its worker, so that there is nothing to compare with."""

    @classmethod
    def of_none(cls, num_envs: int) -> Self:
        """Where there are no twins: nothing is taken off."""
        return cls(torch.zeros(num_envs), torch.full((num_envs,), torch.nan), torch.zeros(num_envs, dtype=torch.bool))


def _padded_masks(masks: Masks, num_slots: int) -> Masks:
    """Masks by head with slots behind the others in which nothing is legal."""
    missing = num_slots - masks["slot"].shape[-1]
    pads = {"slot": (0, missing), "blueprint": (0, 0, 0, missing)}
    return {name: F.pad(mask, pads.get(name, (0, 0))) for name, mask in masks.items()}


def _make_envs(config: TrainingConfig, hubs: Sequence[Hub]) -> list[Environment]:
    """One environment per task; workers are shared out among them, at least one to each."""
    world = config.world
    pooled = 1 < world.workers >= len(world.tasks)
    workers = min(world.envs, world.workers // len(world.tasks))
    envs: list[Environment] = []
    for task, hub in zip(world.tasks, hubs, strict=True):
        settings, architecture = episode_settings(world), config.learner.architecture
        recipe = EnvRecipe(task, settings, config.seed, world.executor, config.reward, architecture)
        envs.append(make_pool(recipe, world.envs, workers, hub=hub) if pooled else recipe(Shard(0, world.envs), hub))
    return envs


class RoundTally:
    """The episodes of a round one by one: tensors `[N]`, NaN where an episode was dropped."""

    def __init__(self, world: GrowthWorld) -> None:
        self._by_task = world.by_task
        self.ended: dict[str, Tensor] = {}
        """What the last step of each episode tells of the whole."""
        self.ops = torch.zeros(world.num_envs, len(Op))
        self.returns = torch.zeros(world.num_envs)
        self.components: dict[str, Tensor] = {}
        """Named terms of the rewards, summed over each episode."""
        self.dropped = torch.zeros(world.num_envs, dtype=torch.bool)
        """Lost with their workers."""
        self.seed_epochs = torch.zeros(num_blueprints() + 1, 4, dtype=torch.int64)
        """`[B + 1, 4]`: per blueprint id, epochs of seeds with a measured gradient, with a vanishing and with an
        exploding one, and with a measured contribution."""

    def add(self, actions: Tensor, step: Transition, running: Tensor) -> None:
        """Count one step, where an episode is running."""
        # Sums over the episode.
        self.ops[torch.arange(len(actions)), actions[:, -1]] += running
        self.returns += torch.where(running, step.rewards, 0.0)
        for name, term in step.components.items():
            added = torch.where(running, term, 0.0)
            self.components[name] = self.components.get(name, torch.zeros_like(added)) + added
        # What the last step tells of the whole episode.
        last = {
            "val_score": step.score,
            "objective": step.objective,
            "twin_objective": step.twin_objective,
            "price": step.price,
            "added_params": step.table.added_params,
            "kept": (step.table.stage == Stage.FOSSILIZED).sum(1),
        }
        ended = running & step.over
        for name, values in last.items():
            column = self.ended.setdefault(name, torch.full_like(self.returns, torch.nan))
            column[ended] = values[ended].to(torch.float32)
        self._count_seeds(step.table, running)
        self.dropped |= running & step.dropped

    def _count_seeds(self, table: SlotTable, running: Tensor) -> None:
        norms, ids = table.seed_grad_norm.where(table.occupied, torch.nan)[running], table.blueprint[running]
        kinds = (
            norms.isfinite(),
            norms < SEED_VANISHING_GRADIENT,
            norms > SEED_EXPLODING_GRADIENT,
            table.contribution[running].isfinite(),
        )
        self.seed_epochs.index_add_(0, ids.flatten(), torch.stack(kinds, -1).flatten(0, 1).long())

    def means(self) -> dict[str, Any]:
        """Means over the episodes that were not dropped, as `RoundCompleted` takes them."""
        whole, ended = ~self.dropped, self.ended
        gain = ended["objective"] - ended["twin_objective"]
        ops = self.ops[whole].mean(0).tolist()
        return {
            "objective": {task: float(part.nanmean()) for task, part in self._by_task(ended["objective"]).items()},
            "gain": {task: float(part.nanmean()) for task, part in self._by_task(gain).items()},
            "ops": {op.name: ops[op] for op in Op},
            "kept": float(ended["kept"].nanmean()),
            "added_params": float(ended["added_params"].nanmean()),
            "components": {name: float(term[whole].mean()) for name, term in self.components.items()},
            "dropped": int(self.dropped.sum()),
        }

    def rows(self) -> list[dict[str, Any]]:
        """The episodes one by one, as `EpisodeEnded` takes them."""
        columns: dict[str, list[Any]] = {name: column.tolist() for name, column in self.ended.items()}
        columns["task"] = [task for task, hosts in self._by_task(self.returns).items() for _ in hosts]
        columns |= {"return_": self.returns.tolist(), "dropped": self.dropped.tolist()}
        columns["ops"] = [{op.name: int(row[op]) for op in Op} for row in self.ops.tolist()]
        terms = {name: term.tolist() for name, term in self.components.items()}
        hosts = range(len(self.returns))
        columns["components"] = [{name: term[host] for name, term in terms.items()} for host in hosts]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
