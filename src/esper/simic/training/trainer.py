"""Training a controller: collect a round, learn from it, record, checkpoint, and again."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from esper.leyline import HEAD_NAMES, EsperError, InputError
from esper.nissa import Hub
from esper.nissa.events import CheckpointSaved, LessonCompleted, RoundCompleted, RunStarted
from esper.simic.agent.checkpoint import pack_checkpoint
from esper.simic.agent.cloning import clone
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.types import PPOUpdateMetrics
from esper.simic.config import TrainingConfig
from esper.simic.telemetry import Anomaly, Instruments
from esper.simic.training.controller import LearnedController
from esper.simic.training.resuming import load_newest
from esper.simic.training.rounds import collect_round
from esper.simic.training.run_folder import BASELINES, RunFolder, RunState, history_entry
from esper.simic.training.setup import episode_settings, make_agent, require_known, require_ready
from esper.simic.training.world import GrowthWorld
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
        self.round = 0
        self.history: list[dict[str, Any]] = []
        self.baselines: dict[str, dict[str, float]] = {}
        self._best = float("-inf")
        self._lessons = 0
        self._phase = 0
        # Going on from a checkpoint sets all of the above.
        require_known(config)
        self._resumed = resume and self._resume()
        self._phases = [config.phase_in(index) for index in range(config.rounds + 1)]
        """Of the curriculum, round by round."""
        self._phase = max(self._phase, self._phases[self.round])
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
            while self.round < self.config.rounds:
                self._record(self._play_round())
                after_round()
                self._remember()
                if self.round % self.config.checkpoint_every == 0 or self.round == self.config.rounds:
                    self._checkpoint()
        finally:
            self.world.close()
        return TrainingSummary(self.round, self._best, self.baselines, self.history)

    def _open_world(self) -> GrowthWorld:
        """The world of the present phase."""
        config = replace(self.config, world=self.config.world.in_phase(self._phase))
        with torch.random.fork_rng(devices=[]):  # a run goes on the same whether its world is new or resumed
            return GrowthWorld(config, self._instruments.world_hub, self._instruments.host_events)

    def _enter_phase(self) -> None:
        """Go on in another world if the curriculum says so; a run that was given more rounds does not go back."""
        if self._phases[self.round] > self._phase:
            before, self._phase = self._phase, self._phases[self.round]
            if self.config.world.in_phase(before) != self.config.world.in_phase(self._phase):
                self.world.close()
                self.world = self._open_world()

    def _play_round(self) -> RoundReport:
        start = time.perf_counter()
        # Collect the episodes of a round.
        self._enter_phase()
        self._set_learning_rate()
        self._instruments.begin(self.round + 1, self.agent)
        self.world.tell_from(self._instruments.host_events)
        tally = collect_round(self.agent, self.world, self.round, self._check_interrupt)
        self._instruments.collected(self.agent, self.world.situations(), tally.seed_epochs, tally.rows())
        # Learn from them.
        metrics = self.agent.update()
        anomalies = self._instruments.updated(metrics, self.agent)
        self.round += 1
        for name in HEAD_NAMES:
            entropies = metrics["head_entropies"].get(name) or [float("nan")]
            _LOG.debug("round %d: entropy of %s %.3f", self.round, name, sum(entropies) / len(entropies))
        # Record what came of it.
        validation = self._validate() if self._validation_due() else None
        record = RoundCompleted(
            round=self.round,
            validation=validation,
            explained_variance=metrics["explained_variance"],
            entropy=metrics["joint_entropy"],
            approx_kl=metrics["approx_kl"],
            clip_fraction=metrics["clip_fraction"],
            advantage_std=metrics["advantage_std_prenorm"],
            seconds=time.perf_counter() - start,
            **tally.means(),
        )
        return RoundReport(record, self.config.rounds, self.baselines, metrics, anomalies)

    def _validation_due(self) -> bool:
        every = self.config.validate_every
        return self.round == self.config.rounds or (every > 0 and self.round % every == 0)

    def _validate(self) -> dict[str, float]:
        """The deterministic policy on the validation seeds; the best is kept."""
        scores = self._mean_objectives(LearnedController(self.agent.policy))
        # The best policy so far is kept apart from the checkpoints that come and go.
        mean = sum(scores.values()) / len(scores)
        if mean > self._best:
            self._best = mean
            if self._folder is not None:
                self._folder.save_best(pack_checkpoint(self.agent, self._extra()))
        return scores

    def _measure_baselines(self) -> None:
        if not self.baselines:
            measured = {}
            for name in BASELINES:
                self._announce(f"measuring {name} on the validation seeds")
                measured[name] = self._mean_objectives(make_controller(name))
            self.baselines = measured
            self._remember()
        self._instruments.tell(RunStarted(config=self.config.to_dict(), baselines=self.baselines))

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
        while lessons.teacher is not None and self.round == 0 and self._lessons < lessons.rounds:
            watch = self._lessons == 0
            manner = "watching" if watch else "playing, advised by"
            self._announce(f"lesson {self._lessons + 1} of {lessons.rounds}: {manner} {lessons.teacher}")
            tally = collect_round(
                self.agent, self.world, self._lessons, self._check_interrupt, lessons.teacher, watch=watch
            )
            cloning = clone(self.agent, lessons)
            self._lessons += 1
            # Record what it brought, and save: lessons are not taken twice.
            if cloning.left_out or cloning.skipped_steps:
                left_out = f"{cloning.left_out} episodes and {cloning.skipped_steps} minibatches"
                self._announce(f"NaN or infinity: {left_out} were left out")
            self._instruments.tell(
                LessonCompleted(
                    lesson=self._lessons,
                    gain=tally.means()["gain"],
                    first_loss=cloning.losses[0],
                    last_loss=cloning.losses[-1],
                    left_out=cloning.left_out,
                    skipped_steps=cloning.skipped_steps,
                )
            )
            self._remember()
            self._checkpoint()

    def _record(self, report: RoundReport) -> None:
        self.history.append(history_entry(report.record))
        self._instruments.tell(report.record)
        self._watch(report)

    def _remember(self) -> None:
        """Keep the present state in memory: what is saved when the run is stopped in the middle of what follows."""
        self._whole = (self.round, pack_checkpoint(self.agent, self._extra()))

    def _checkpoint(self) -> None:
        """Save what was remembered last; what was told of it is written first, or a kill could lose it for good."""
        if self._folder is not None:
            self._flush()
            self._folder.save(*self._whole, self.config.keep_checkpoints)
            self._instruments.tell(CheckpointSaved(round=self._whole[0]))

    def _extra(self) -> dict[str, Any]:
        return RunState(
            round=self.round,
            phase=self._phase,
            rng=torch.get_rng_state(),
            best=self._best,
            lessons=self._lessons,
            baselines=self.baselines,
            history=self.history,
            instruments=self._instruments.state_dict(),
        ).to_dict()

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
        self.agent, state = found
        self.round, self._best, self._lessons = state.round, state.best, state.lessons
        self.baselines, self.history, self._phase = state.baselines, state.history, state.phase
        self._instruments.load_state_dict(state.instruments)
        torch.set_rng_state(state.rng)
        return True

    def _set_learning_rate(self) -> None:
        learner = self.config.learner
        progress = self.round / self.config.rounds if learner.lr_schedule == "linear" else 0.0
        self.agent.set_learning_rate(learner.lr * (1 - (1 - _LAST_LR_FACTOR) * progress))
