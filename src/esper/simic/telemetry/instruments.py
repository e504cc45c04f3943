"""The instruments of a run: what the trainer tells them, they turn into events and alarms; and a profiler.

Nothing here decides anything about the run.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, schedule, supported_activities

from esper.kasmina import Site, find_blueprint
from esper.leyline import Blend, EventType, InputError, Op, Severity, TelemetryEvent
from esper.nissa import Hub
from esper.nissa.events import (
    AnomalyDetected,
    DecisionsRecorded,
    EpisodeEnded,
    UpdateCompleted,
    UpdateExamined,
)
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.types import ActionDict, PPOUpdateMetrics
from esper.simic.config import TrainingConfig
from esper.simic.telemetry.anomaly_detector import ADVICE, Anomaly, AnomalyDetector, SeedEpochs
from esper.simic.telemetry.gradient_collector import (
    GradientDrift,
    GradientEMATracker,
    LSTMHealth,
    compute_lstm_health,
)
from esper.simic.telemetry.update_watcher import TelemetryConfig, UpdateWatcher
from esper.tolaria import Situation

_LOG = logging.getLogger(__name__)
_SUSPICIONS = (EventType.RANSOMWARE_SUSPECTED, EventType.REWARD_HACKING_SUSPECTED)
VALUE_WARM_UP = 2
"""Rounds before divergence of the critic is checked; a fresh Adam overshoots."""
_DIGITS = 6
"""Decimals of the numbers in decision records: enough to read, and a third of the bytes."""


class Instruments:
    """Watches one run. The trainer calls `begin`, `collected` and `updated` in every round, in this order."""

    def __init__(self, config: TrainingConfig, hub: Hub) -> None:
        self.levels = TelemetryConfig(config.telemetry.level)
        self._detector = AnomalyDetector(**config.to_anomaly_kwargs())
        self._tracker = GradientEMATracker(limit=self._detector.drift_limit)
        self._rounds = config.rounds
        self._critic_rounds = config.telemetry.critic_rounds
        self.hub = hub if self.enabled else Hub()
        """Where to tell of the round that is being played."""
        self._suspects = _SuspectCounter()
        self._watcher: UpdateWatcher | None = None
        self._round = 0
        self._seeds = SeedEpochs()
        self._lstm: LSTMHealth | None = None

    @property
    def enabled(self) -> bool:
        """Whether anything is recorded at all."""
        return self.levels.level != "off"

    @property
    def world_hub(self) -> Hub:
        """Where hosts tell what happens to them."""
        return Hub([self.hub, self._suspects]) if self.enabled else self.hub

    @property
    def host_events(self) -> Severity:
        """The least severity of hosts' events that is wanted now."""
        least = self.levels.host_events
        return Severity.WARNING if least is None or not self.hub.listening else least

    def begin(self, round_number: int, agent: PPOAgent) -> None:
        """A round is about to be played."""
        self._round, self.hub = round_number, self.hub.bind(round_=round_number)
        if not self.enabled:
            return
        # A resumed run has another agent.
        if self._watcher is None or self._watcher.agent is not agent:
            limits = self._detector.max_ratio_threshold, self._detector.min_ratio_threshold
            self._watcher = UpdateWatcher(agent, self.levels, *limits)
        agent.telemetry_config, agent.observer = self.levels, self._watcher
        self._suspects.count = 0

    def collected(
        self,
        agent: PPOAgent,
        situations: Mapping[str, Situation],
        seed_epochs: Tensor,
        episodes: Sequence[Mapping[str, Any]],
    ) -> None:
        """Its episodes are in the agent's buffer; see `RoundTally` for what it showed of seeds and `episodes`."""
        if not self.enabled:
            return
        # What the round showed of seeds and of the policy's memory.
        self._seeds = _seed_epochs(seed_epochs, situations, self._suspects.count)
        buffer = agent.buffer
        kept = buffer.hidden_storage == "all"
        states = (buffer.hidden_h[:, : buffer.num_steps], buffer.hidden_c[:, : buffer.num_steps])
        self._lstm = compute_lstm_health(states if kept else None)
        if self.levels.should_collect("normal") and self.hub.hears(Severity.INFO):
            self._tell_episodes(agent, situations, episodes)

    def updated(self, metrics: PPOUpdateMetrics, agent: PPOAgent) -> tuple[Anomaly, ...]:
        """The agent has learned from the round; returns the alarms."""
        if not self.enabled or self._watcher is None or metrics["empty"]:
            return ()
        gradients = self._watcher.take_gradients()
        drift = self._tracker.update(metrics["total_grad_norm"], gradients["gradient_health"])
        entropies = {name: metrics["head_choice_entropies"][name] for name, n in metrics["head_choices"].items() if n}
        self.hub.tell(
            UpdateCompleted.of_metrics(
                metrics,
                agent.spec.names,
                update=agent.updates,
                total_steps=agent.total_steps,
                learning_rate=agent.optimizer.param_groups[0]["lr"],
                entropy_collapsed=self._detector.collapsed_heads(entropies, self._round / self._rounds),
                gradients={**gradients, "drift": drift.norm},
                lstm=None if self._lstm is None else self._lstm.to_dict(),
                seeds=self._seeds.to_dict(),
                level=self.levels.current,
            )
        )
        # At debug level also where an explosion came from.
        records = self._watcher.take_debug_records(gradients)
        if records is not None:
            self.hub.tell(UpdateExamined(ratios=records[0], stability=records[1]))
        # Alarms, which raise the level for the updates to come.
        anomalies = self._judge(metrics, entropies, drift)
        self.levels.update_done()
        if anomalies:
            self.levels.escalate()
        for anomaly in anomalies:
            advice = ADVICE[anomaly.kind]
            self.hub.tell(
                AnomalyDetected(anomaly=anomaly.kind, message=anomaly.message, advice=advice, details=anomaly.details)
            )
        return anomalies

    def _judge(
        self, metrics: PPOUpdateMetrics, entropies: Mapping[str, float], drift: GradientDrift
    ) -> tuple[Anomaly, ...]:
        return self._detector.check_all(
            ratio_max=metrics["round_ratio_high"],
            ratio_min=metrics["round_ratio_low"],
            explained_variance=metrics["explained_variance"] if self._round > self._critic_rounds else None,
            has_nan=metrics["has_numerical_issue"],
            head_entropies=entropies,
            kl=metrics["joint_kl"],
            drift=drift.indicator if drift.finite else None,
            value_growth=value_growth(metrics) if self._round > VALUE_WARM_UP else None,
            lstm=self._lstm,
            seeds=self._seeds,
            current_episode=self._round,
            total_episodes=self._rounds,
        ).anomalies

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on with."""
        return {"gradients": self._tracker.state_dict(), "escalation": self.levels.remaining}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._tracker.load_state_dict(state["gradients"])
        self.levels.remaining = state["escalation"]

    def _tell_episodes(
        self, agent: PPOAgent, situations: Mapping[str, Situation], episodes: Sequence[Mapping[str, Any]]
    ) -> None:
        buffer = agent.buffer
        numbers = torch.stack([buffer.log_probs.sum(-1), buffer.values, buffer.rewards]).cpu()
        actions, steps = buffer.actions.tolist(), buffer.step_counts.tolist()
        # Each episode with its means, and with its decisions by name.
        for index, row in enumerate(episodes):
            situation, length = situations[row["task"]], steps[index]
            added = 0 if row["dropped"] else int(row["added_params"])
            sizes = {"added_params": added, "params": situation.host_params + added}
            self.hub.tell(EpisodeEnded(steps=length, **{**row, **sizes}), env_id=index)
            if length:
                rows = actions[index][:length]
                chosen = [ActionDict(slot=s, blueprint=b, blend=blend, op=op) for s, b, blend, op in rows]
                self.hub.tell(_decisions(chosen, numbers[:, index, :length], situation.sites), env_id=index)


def _seed_epochs(counts: Tensor, situations: Mapping[str, Situation], suspected: int) -> SeedEpochs:
    """From counts per blueprint id; where tasks have other families, a blueprint goes by the names of all of them."""
    families = dict.fromkeys(site.shape.family for situation in situations.values() for site in situation.sites)
    names = [
        "/".join(dict.fromkeys(find_blueprint(family, index).name for family in families))
        for index in range(1, len(counts))
    ]
    *by_gradient, judged = counts[1:].T.tolist()
    trained, vanishing, exploding = (dict(zip(names, column, strict=True)) for column in by_gradient)
    return SeedEpochs(trained, vanishing, exploding, sum(judged), suspected)


def value_growth(metrics: PPOUpdateMetrics) -> float | None:
    """By what the critic's error on the round was multiplied, or its spread if that is more; None without an error.

    A critic that learns something else may come closer to the returns by accident while it is far off on the whole; the
    spread of its error then shows it.
    """
    error, spread = metrics["value_mse_before"], 1.0 - metrics["explained_variance"]
    if not metrics["optimizer_steps"] or error <= 0 or spread <= 0:
        return None
    return max(metrics["value_mse_after"] / error, (1.0 - metrics["explained_variance_after"]) / spread)


def _decisions(actions: list[ActionDict], numbers: Tensor, sites: tuple[Site, ...]) -> DecisionsRecorded:
    """Decisions of one episode by name; `numbers [3, T]` are log-probabilities, values and rewards."""
    log_prob, value, reward = ([round(number, _DIGITS) for number in row] for row in numbers.tolist())
    told = DecisionsRecorded(op=[], slot=[], blueprint=[], blend=[], log_prob=log_prob, value=value, reward=reward)
    for action in actions:
        op, site = Op(action["op"]), sites[action["slot"]]
        grows = op is Op.GERMINATE
        told.op.append(op.name)
        told.slot.append(None if op is Op.WAIT else site.slot_id)
        told.blueprint.append(find_blueprint(site.shape.family, action["blueprint"] + 1).name if grows else None)
        told.blend.append(Blend(action["blend"]).name if grows else None)
    return told


class _SuspectCounter:
    """A sink that counts seeds suspected of gaming their credit; one that both checks suspect counts once."""

    def __init__(self) -> None:
        self.count = 0

    def write(self, event: TelemetryEvent) -> None:
        self.count += event.event_type in _SUSPICIONS

    def close(self) -> None:
        """Nothing to finish."""


_WAIT, _WARM_UP, _ACTIVE = 1, 1, 1
"""Rounds that are left out, that warm the profiler up, and that are recorded."""
_ACCELERATORS: tuple[tuple[ProfilerActivity, Callable[[], bool]], ...] = (
    (ProfilerActivity.CUDA, torch.cuda.is_available),
    (ProfilerActivity.XPU, torch.xpu.is_available),
)


def profiler_activities() -> set[ProfilerActivity]:
    """The CPU, and every accelerator that is here and has a profiler; what has none is said once."""
    supported = supported_activities()
    found = {ProfilerActivity.CPU}
    found |= {activity for activity, available in _ACCELERATORS if activity in supported and available()}
    if torch.backends.mps.is_available():
        _LOG.warning("torch has no profiler for MPS: only what the CPU does is recorded")
    return found


def prepare_profile(folder: Path | None) -> None:
    """Make the folder for traces, if there is to be one, or refuse it before anything runs."""
    if folder is not None:
        try:
            folder.expanduser().mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"traces cannot be written to {folder} ({error.strerror}); name another folder for them"
            ) from None


@contextmanager
def profiled(folder: Path | None, first: int, rounds: int) -> Iterator[Callable[[], None]]:
    """Profile what runs inside, one round per call of what is given; the trace goes into `folder`.

    `first` rounds were played before, and `rounds` are to come. The third of them is recorded, after one that is left
    out and one that warms up; of fewer, the last. Open the trace with chrome://tracing or Perfetto. Transfers from a
    device do not block: this waits for the device at the end of each step, and so do not compare its times with those
    of a run without it. None as folder profiles nothing.
    """
    if folder is None:
        yield lambda: None
        return
    target = folder.expanduser().resolve()

    def save(trace: profile) -> None:
        trace.export_chrome_trace(str(target / f"round-{first + wait + warm_up + _ACTIVE:06d}.json"))

    wait, warm_up = min(_WAIT, max(0, rounds - _WARM_UP - _ACTIVE)), min(_WARM_UP, rounds - _ACTIVE)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Profiler won't be using warmup")  # there is no round to warm up in
        plan = schedule(wait=wait, warmup=warm_up, active=_ACTIVE, repeat=1)
    with profile(activities=profiler_activities(), schedule=plan, on_trace_ready=save) as running:

        def end_round() -> None:
            # The work of an accelerator is asynchronous: times taken without waiting for it mean nothing.
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            elif torch.xpu.is_available():
                torch.xpu.synchronize()
            running.step()

        yield end_round
