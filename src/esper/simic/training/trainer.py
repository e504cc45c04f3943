"""Training a controller: collect a round, learn from it, record, checkpoint, and again."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from esper.leyline import HEAD_NAMES, EsperError, InputError
from esper.nissa import Hub
from esper.nissa.events import CheckpointSaved, LessonCompleted, RoundCompleted, RunStarted
from esper.simic.agent.checkpoint import pack_checkpoint
from esper.simic.agent.cloning import Cloning, clone
from esper.simic.agent.network import last_layer
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.types import PPOUpdateMetrics
from esper.simic.rewards import check_learner
from esper.simic.telemetry import Anomaly
from esper.simic.training.config import TrainingConfig
from esper.simic.training.config_checks import FIRST_LESSON
from esper.simic.training.controller import LearnedController, fresh_normalizer, restore_normalizer
from esper.simic.training.instruments import Instruments
from esper.simic.training.resuming import load_newest
from esper.simic.training.rounds import RoundOutcome, collect_round
from esper.simic.training.run_folder import RunFolder
from esper.simic.training.run_state import BASELINES, RunState
from esper.simic.training.setup import agent_options, require_ready
from esper.simic.training.world import GrowthWorld
from esper.tamiyo import Controller, make_controller, run_episodes
from esper.tolaria import find_task

FIRST_VALIDATION_SEED = 1_000_000
"""Validation episodes are seeded from here on, far from what people report on."""
_LAST_LR_FACTOR = 0.1
_LOG = logging.getLogger(__name__)


class InterruptedRunError(EsperError):
    """The run was asked to stop, and has saved."""


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round in numbers, as people and logs get it."""

    round: int
    rounds: int
    baselines: Mapping[str, Mapping[str, float]]
    """Per baseline and task: the same on the validation seeds, measured at the start."""
    validation: Mapping[str, float] | None
    """Per task: the deterministic policy on the validation seeds, in rounds that measured it."""
    outcome: RoundOutcome
    metrics: PPOUpdateMetrics
    seconds: float
    anomalies: tuple[Anomaly, ...] = ()


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
        check_learner(config.reward, config.gamma, config.horizon_is_terminal)
        self._resumed = resume and self._resume()
        self._phase = max(self._phase, config.phase_in(self.round))
        self.world = self._open_world(config.in_phase(self._phase))
        if not self._resumed:
            torch.manual_seed(config.seed)
            self.agent = self._make_agent()
            self.normalizer = fresh_normalizer(self.agent)
        self._remember()

    def run(self) -> TrainingSummary:
        """Train to the last round."""
        try:
            if not self._resumed:
                self._checkpoint()  # whenever the run is killed from here on, it can be resumed
            self._measure_baselines()
            self._take_lessons()
            while self.round < self.config.rounds:
                self._record(self._play_round())
                self._remember()
                if self.round % self.config.checkpoint_every == 0 or self.round == self.config.rounds:
                    self._checkpoint()
        finally:
            self.world.close()
        return TrainingSummary(self.round, self._best, self.baselines, self.history)

    def _open_world(self, config: TrainingConfig) -> GrowthWorld:
        self._world_config = config
        with torch.random.fork_rng(devices=[]):  # a run goes on the same whether its world is new or resumed
            return GrowthWorld(config, self._instruments.world_hub)

    def _enter_phase(self) -> None:
        """Go on in another world if the curriculum says so; a run that was given more rounds does not go back."""
        self._phase = max(self._phase, self.config.phase_in(self.round))
        config = self.config.in_phase(self._phase)
        if config != self._world_config:
            self.world.close()
            self.world = self._open_world(config)

    def _play_round(self) -> RoundReport:
        start = time.perf_counter()
        self._enter_phase()
        self._set_learning_rate()
        self._instruments.begin(self.round + 1, self.agent, self.world)
        outcome = collect_round(self.agent, self.normalizer, self.world, self.round, self._check_interrupt)
        self._instruments.collected(outcome, self.agent, self.world)
        metrics = self.agent.update(obs_normalizer=self.normalizer)
        anomalies = self._instruments.updated(metrics, self.agent)
        self.round += 1
        for name in HEAD_NAMES:
            entropies = metrics["head_entropies"].get(name) or [float("nan")]
            _LOG.debug("round %d: entropy of %s %.3f", self.round, name, sum(entropies) / len(entropies))
        return RoundReport(
            self.round,
            self.config.rounds,
            self.baselines,
            self._validate() if self._validation_due() else None,
            outcome,
            metrics,
            time.perf_counter() - start,
            anomalies,
        )

    def _validation_due(self) -> bool:
        every = self.config.validate_every
        return self.round == self.config.rounds or (every > 0 and self.round % every == 0)

    def _validate(self) -> dict[str, float]:
        """The deterministic policy on the validation seeds; the best is kept."""
        scores = self._mean_objectives(LearnedController(self.agent, self.normalizer))
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
        for task in self.config.tasks:
            results = run_episodes(
                find_task(task),
                controller,
                seeds,
                self.config.episode_settings(),
                executor=self.config.executor,
                test=False,
                after_step=self._check_interrupt,
            )
            means[task] = sum(result.val_objective for result in results) / len(results)
        return means

    def _take_lessons(self) -> None:
        """Before the first round: watch the teacher and imitate it, then play and be told what it would have done.

        Playing shows the value function what comes of other decisions than the teacher's, before it is relied upon.
        """
        while self.config.teacher is not None and self.round == 0 and self._lessons < self.config.lessons:
            manner = "watching" if self._lessons == 0 else "playing under the eye of"
            self._announce(f"lesson {self._lessons + 1} of {self.config.lessons}: {manner} {self.config.teacher}")
            outcome = collect_round(
                self.agent,
                self.normalizer,
                self.world,
                FIRST_LESSON + self._lessons,
                self._check_interrupt,
                self.config.teacher,
                watch=self._lessons == 0,
            )
            buffer = self.agent.buffer
            self.normalizer.update(buffer.raw_obs[buffer.valid])
            buffer.obs.copy_(self.normalizer.normalize(buffer.raw_obs))
            cloning = clone(
                self.agent,
                self.config.lesson_passes,
                self.config.lesson_lr,
                self.config.lesson_smoothing,
                self.config.lesson_detail_smoothing,
                self.config.op_bias,
            )
            self._lessons += 1
            self._record_lesson(outcome, cloning)
            self._remember()
            self._checkpoint()

    def _record_lesson(self, outcome: RoundOutcome, cloning: Cloning) -> None:
        left_out, skipped = cloning.left_out, cloning.skipped_steps
        if left_out or skipped:
            self._announce(f"NaN or infinity: {left_out} episodes and {skipped} minibatches were left out")
        self._instruments.tell(
            LessonCompleted(
                lesson=self._lessons,
                gain=dict(outcome.gain),
                first_loss=cloning.losses[0],
                last_loss=cloning.losses[-1],
                left_out=left_out,
                skipped_steps=skipped,
            )
        )

    def _record(self, report: RoundReport) -> None:
        entry: dict[str, Any] = {
            "round": report.round,
            "objective": dict(report.outcome.objective),
            "gain": dict(report.outcome.gain),
            "validation": report.validation,
            "ops": dict(report.outcome.ops),
            "kept": report.outcome.kept,
            "added_params": report.outcome.added_params,
            "components": dict(report.outcome.components),
            "dropped": report.outcome.dropped,
            "explained_variance": report.metrics["explained_variance"],
            "entropy": report.metrics["joint_entropy"],
            "approx_kl": report.metrics["approx_kl"],
            "clip_fraction": report.metrics["clip_fraction"],
            "advantage_std": report.metrics["advantage_std_prenorm"],
        }
        self.history.append(entry)
        self._instruments.tell(RoundCompleted(**entry, seconds=report.seconds))
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
            normalizer=self.normalizer.state_dict(),
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
        self.normalizer = restore_normalizer(state.normalizer, self.agent)
        self.round, self._best, self._lessons = state.round, state.best, state.lessons
        self.baselines, self.history, self._phase = state.baselines, state.history, state.phase
        self._instruments.load_state_dict(state.instruments)
        torch.set_rng_state(state.rng)
        return True

    def _make_agent(self) -> PPOAgent:
        agent = PPOAgent(**agent_options(self.config, self.world.num_slots))
        with torch.no_grad():
            bias = last_layer(agent._base_network.policy_head("op")).bias
            bias.add_(torch.tensor(self.config.op_bias, device=agent.device))
        return agent

    def _set_learning_rate(self) -> None:
        progress = self.round / self.config.rounds if self.config.lr_schedule == "linear" else 0.0
        self.agent.set_learning_rate(self.config.lr * (1 - (1 - _LAST_LR_FACTOR) * progress))
