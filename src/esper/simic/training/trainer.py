"""Training a controller: collect a round, learn from it, record, checkpoint, and again."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from esper.leyline import (
    HEAD_NAMES,
    EsperError,
    InputError,
)
from esper.nissa import Hub
from esper.nissa.events import CheckpointSaved, LessonCompleted, RoundCompleted, RunStarted
from esper.simic.agent.checkpoint import pack_checkpoint
from esper.simic.agent.cloning import Cloning, clone
from esper.simic.agent.distilling import Lesson, distil
from esper.simic.agent.network import Policy
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.types import Hidden, PPOUpdateMetrics
from esper.simic.config import TrainingConfig
from esper.simic.control.action_masks import move_masks, to_device
from esper.simic.search import PlanTeacher, search_tasks
from esper.simic.telemetry import Anomaly, Instruments
from esper.simic.training.controller import LearnedController
from esper.simic.training.resuming import load_newest
from esper.simic.training.run_folder import BASELINES, ROUND_FIELDS, RunFolder, RunState
from esper.simic.training.setup import SEARCH, episode_settings, make_agent, require_known, require_ready, search_job
from esper.simic.training.world import GrowthWorld, RoundTally, Teacher, Transition
from esper.tamiyo import Controller, make_controller, run_episodes
from esper.tasks import find_task

FIRST_VALIDATION_SEED = 1_000_000
"""Validation episodes are seeded from here on, far from what people report on."""
_LAST_LR_FACTOR = 0.1
_LOG = logging.getLogger(__name__)


class InterruptedRunError(EsperError):
    """The run was asked to stop, and has saved."""


@dataclass(frozen=True, slots=True)
class RoundReport:
    """A round as whoever watches the run gets it: its record, and what the record leaves out."""

    record: RoundCompleted
    rounds: int
    baselines: Mapping[str, Mapping[str, float]]
    """Per baseline and task: the objective on the validation seeds, measured at the start."""
    metrics: PPOUpdateMetrics
    anomalies: tuple[Anomaly, ...]


@dataclass(frozen=True, slots=True)
class TrainingSummary:
    """What a run came to."""

    rounds: int
    best_objective: float
    """Mean over tasks on the validation seeds, deterministic."""
    baselines: Mapping[str, Mapping[str, float]]
    history: Sequence[Mapping[str, Any]]


class Trainer:
    """One run. `run` goes on to the last round; a run that was stopped is taken up by another trainer with `resume`."""

    agent: PPOAgent

    def __init__(
        self,
        config: TrainingConfig,
        folder: RunFolder | None = None,
        *,
        resume: bool = False,
        hub: Hub | None = None,
        watch: Callable[[RoundReport], None] = lambda _: None,
        announce: Callable[[str], None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        self.config = config
        self._folder = folder
        self._instruments = Instruments(config, hub or Hub())
        self._watch, self._announce = watch, announce
        self._should_stop = should_stop
        self._flush = flush
        self.state = RunState()
        require_known(config)
        self._resumed = resume and self._resume()
        self._phases = [config.phase_in(index) for index in range(config.rounds + 1)]
        """Of the curriculum, round by round."""
        self.state.phase = max(self.state.phase, self._phases[self.state.round])
        self.world = self._open_world()
        if not self._resumed:
            torch.manual_seed(config.seed)
            self.agent = make_agent(config, self.world.num_slots)
        self._remember()

    def run(self, after_round: Callable[[], None] = lambda: None) -> TrainingSummary:
        """Train to the last round."""
        try:
            if not self._resumed:
                self._checkpoint()  # whenever the run is killed from here on, it can be resumed
            # Before the first round: what there is to beat, and behaviour cloning.
            self._measure_baselines()
            self._take_lessons()
            self._validate_clone()
            while self.state.round < self.config.rounds:
                self._record(self._play_round())
                after_round()
                self._remember()
                if self.state.round % self.config.checkpoint_every == 0 or self.state.round == self.config.rounds:
                    self._checkpoint()
        finally:
            self.world.close()
        return TrainingSummary(self.state.round, self.state.best, self.state.baselines, self.state.history)

    def _open_world(self) -> GrowthWorld:
        """The world of the present phase."""
        config = self.config.in_phase(self.state.phase)
        with torch.random.fork_rng(devices=[]):  # a run goes on the same whether its world is new or resumed
            return GrowthWorld(config, self._instruments.world_hub, self._instruments.host_events)

    def _enter_phase(self) -> None:
        """Go on in another world if the curriculum says so; a run that was given more rounds does not go back."""
        if self._phases[self.state.round] > self.state.phase:
            before, self.state.phase = self.state.phase, self._phases[self.state.round]
            if self.config.world.in_phase(before) != self.config.world.in_phase(self.state.phase):
                self.world.close()
                self.world = self._open_world()

    def _play_round(self) -> RoundReport:
        start = time.perf_counter()
        # Collect the episodes of a round.
        self._enter_phase()
        self._set_learning_rate()
        self._instruments.begin(self.state.round + 1, self.agent)
        self.world.tell_from(self._instruments.host_events)
        tally = collect_round(self.agent, self.world, self.state.round, self._check_interrupt)
        self._instruments.collected(self.agent, self.world.situations(), tally.seed_epochs, tally.rows())
        # Learn from them.
        metrics = self.agent.update()
        anomalies = self._instruments.updated(metrics, self.agent)
        self.state.round += 1
        for name in HEAD_NAMES:
            entropies = metrics["head_entropies"].get(name) or [float("nan")]
            _LOG.debug("round %d: entropy of %s %.3f", self.state.round, name, sum(entropies) / len(entropies))
        # Record what came of it.
        every, last = self.config.validate_every, self.state.round == self.config.rounds
        due = last or (every > 0 and self.state.round % every == 0)
        record = RoundCompleted(
            round=self.state.round,
            validation=self._validate() if due else None,
            explained_variance=metrics["explained_variance"],
            entropy=metrics["joint_entropy"],
            approx_kl=metrics["approx_kl"],
            clip_fraction=metrics["clip_fraction"],
            advantage_std=metrics["advantage_std_prenorm"],
            seconds=time.perf_counter() - start,
            **tally.means(),
        )
        return RoundReport(record, self.config.rounds, self.state.baselines, metrics, anomalies)

    def _validate(self) -> dict[str, float]:
        """The deterministic policy on the validation seeds; the best is kept."""
        scores = self._mean_objectives(LearnedController(self.agent.policy))
        # The best policy so far is kept apart from the checkpoints that come and go.
        mean = sum(scores.values()) / len(scores)
        if mean > self.state.best:
            self.state.best = mean
            if self._folder is not None:
                self._folder.save_best(self._packed())
        return scores

    def _measure_baselines(self) -> None:
        if not self.state.baselines:
            measured = {}
            for name in BASELINES:
                self._announce(f"measuring {name} on the validation seeds")
                measured[name] = self._mean_objectives(make_controller(name))
            self.state.baselines = measured
            self._remember()
        self._instruments.hub.tell(RunStarted(config=self.config.to_dict(), baselines=self.state.baselines))

    def _mean_objectives(self, controller: Controller) -> dict[str, float]:
        seeds = range(FIRST_VALIDATION_SEED, FIRST_VALIDATION_SEED + self.config.validation_episodes)
        means = {}
        world = self.config.world
        for task in world.tasks:
            results = run_episodes(
                find_task(task),
                controller,
                seeds,
                episode_settings(world),
                executor=world.executor,
                test=False,
                after_step=self._check_interrupt,
            )
            means[task] = sum(result.val_objective for result in results) / len(results)
        return means

    def _take_lessons(self) -> None:
        """Behaviour cloning before the first round: first of a teacher that plays, then of one that only advises.

        Playing shows the value function what comes of other decisions than the teacher's, before it is relied upon.
        """
        lessons = self.config.lessons
        if lessons.teacher is None or self.state.round > 0 or self.state.lessons == lessons.rounds:
            return
        if lessons.teacher == SEARCH:
            self._learn_from_search()
            return
        while self.state.lessons < lessons.rounds:
            tally = self._play_lesson(lessons.teacher)
            self._record_lesson(tally, clone(self.agent, lessons))
            self._remember()
            self._checkpoint()

    def _learn_from_search(self) -> None:
        """Distillation from what a search has learned, on all lessons so far in each.

        It is saved as a whole: what is interrupted in the middle is done again, the same, from the end of the search.
        """
        lessons, taken = self.config.lessons, list[Lesson]()
        teachers = self._search()
        while self.state.lessons < lessons.rounds:
            tally = self._play_lesson(teachers)
            buffer, learner = self.agent.buffer, self.agent.config
            buffer.compute_advantages_and_returns(learner.gamma, 1.0, horizon_is_terminal=learner.horizon_is_terminal)
            taken.append(Lesson.of(buffer, self.world.regrets(teachers, buffer.max_steps)))
            self._record_lesson(tally, distil(self.agent, taken, lessons))
        self._remember()
        self._checkpoint()

    def _play_lesson(self, teacher: Teacher) -> RoundTally:
        watch, lessons = self.state.lessons == 0, self.config.lessons
        manner = "watching" if watch else "playing, advised by"
        self._announce(f"lesson {self.state.lessons + 1} of {lessons.rounds}: {manner} {lessons.teacher}")
        return collect_round(self.agent, self.world, self.state.lessons, self._check_interrupt, teacher, watch=watch)

    def _record_lesson(self, tally: RoundTally, cloning: Cloning) -> None:
        self.state.lessons += 1
        if cloning.left_out or cloning.skipped_steps:
            left_out = f"{cloning.left_out} episodes and {cloning.skipped_steps} minibatches"
            self._announce(f"NaN or infinity: {left_out} were left out")
        self._instruments.hub.tell(
            LessonCompleted(
                lesson=self.state.lessons,
                gain=tally.means()["gain"],
                first_loss=cloning.losses[0],
                last_loss=cloning.losses[-1],
                left_out=cloning.left_out,
                skipped_steps=cloning.skipped_steps,
            )
        )

    def _validate_clone(self) -> None:
        """What cloning alone comes to: PPO has to be better on validation for its policies to be kept as the best."""
        if self.config.lessons.teacher is None or self.state.round > 0 or self.state.best > -math.inf:
            return
        self._announce("validating the cloned policy")
        self._validate()
        self._remember()
        self._checkpoint()

    def _search(self) -> dict[str, PlanTeacher]:
        """What a search, begun here or taken up, has learned of each task."""
        with TemporaryDirectory() as temporary:
            given = self.config.lessons.search_folder
            own = Path(temporary) if self._folder is None else self._folder.search
            folder = own if given is None else Path(given)
            folder.mkdir(parents=True, exist_ok=True)
            job = search_job(self.config.in_phase(self.state.phase), folder)
            workers = min(self.config.world.workers, len(job.tasks))
            found = {row.task: row for row in search_tasks(job, workers, self._tell_of_search)}
        return {task: PlanTeacher(found[task], self.config.lessons.exploration) for task in job.tasks}

    def _tell_of_search(self, task: str, done: int, total: int) -> None:
        self._announce(f"searching for plans of {task}: {done} of at most {total} episodes")
        self._check_interrupt()

    def _record(self, report: RoundReport) -> None:
        self.state.history.append({name: getattr(report.record, name) for name in ROUND_FIELDS})
        self._instruments.hub.tell(report.record)
        self._watch(report)

    def _remember(self) -> None:
        """Keep the present state in memory: what is saved when the run is stopped in the middle of what follows."""
        self._whole = (self.state.round, self._packed())

    def _checkpoint(self) -> None:
        """Save what was remembered last; what was told of it is written first, or a kill could lose it for good."""
        if self._folder is not None:
            self._flush()
            self._folder.save(*self._whole, self.config.keep_checkpoints)
            self._instruments.hub.tell(CheckpointSaved(round=self._whole[0]))

    def _packed(self) -> bytes:
        return pack_checkpoint(self.agent, self.state.packed(self._instruments.state_dict()))

    def _check_interrupt(self) -> None:
        """Stop between two steps if asked to: the round under way is dropped and will be played again, the same."""
        if self._should_stop():
            self._checkpoint()
            raise InterruptedRunError("stopped; everything up to the last whole round is saved")

    def _resume(self) -> bool:
        """Go on from the newest checkpoint; false if the run was killed before there was one, and so begins now."""
        if self._folder is None:
            raise InputError("resume needs the folder of the run")
        found = load_newest(self._folder, self.config, require_ready(self.config))
        if found is None:
            self._announce("no checkpoint was written yet: beginning with the first round")
            return False
        self.agent, self.state = found
        self._instruments.load_state_dict(self.state.instruments)
        torch.set_rng_state(self.state.rng)
        return True

    def _set_learning_rate(self) -> None:
        learner = self.config.learner
        progress = self.state.round / self.config.rounds if learner.lr_schedule == "linear" else 0.0
        self.agent.set_learning_rate(learner.lr * (1 - (1 - _LAST_LR_FACTOR) * progress))


def collect_round(
    agent: PPOAgent,
    world: GrowthWorld,
    index: int,
    check_interrupt: Callable[[], None] = lambda: None,
    teacher: Teacher | None = None,
    *,
    watch: bool = True,
) -> RoundTally:
    """Play one episode per host and store it; the statistics of the policy's normaliser stay as they are.

    `check_interrupt` is called after every step, and may raise. With a `teacher` this is a lesson: what is stored as
    actions is what the teacher's controllers would do; the agent either watches it play, or plays itself and is told.
    """
    policy = agent.policy
    agent.buffer.clear()
    observations, masks = world.reset(index, check_interrupt, lesson=teacher is not None)
    hidden = policy.initial_hidden(world.num_envs)
    running, tally = torch.ones(world.num_envs, dtype=torch.bool), RoundTally(world)
    teachers = None if teacher is None else world.controllers(teacher)
    while running.any():
        # The world is on the CPU; policy and buffer are on the agent's device.
        observations, masks = to_device(observations, agent.device), move_masks(masks, agent.device)
        normalized = policy.normalized(observations)
        decision = agent.act(normalized, masks, hidden)
        played = decision.actions.cpu()
        # A teacher's action is the label, whoever plays.
        if teachers is not None:
            decision = decision._replace(actions=world.decide(teachers))
            played = decision.actions if watch else played
        step = world.step(played)
        agent.buffer.add_step(
            normalized,
            masks,
            hidden,
            decision,
            step.rewards,
            step.over,
            step.truncated,
            bootstrap_values=None if agent.config.horizon_is_terminal else _values_after(step, policy, decision.hidden),
            raw_obs=observations,
            active=running,
        )
        tally.add(played, step, running)
        running = running & ~(step.over | step.dropped)
        observations, masks, hidden = step.observations, step.masks, decision.hidden
        check_interrupt()
    agent.buffer.step_counts[tally.dropped] = 0  # nothing is learned from episodes that were lost
    return tally


def _values_after(step: Transition, policy: Policy, hidden: Hidden) -> Tensor | None:
    """What the state after `step` is worth, if an episode was cut off there."""
    if not step.truncated.any():
        return None
    return policy.value(policy.normalized(to_device(step.observations, policy.device)), hidden)
