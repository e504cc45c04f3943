"""The instruments of a run: what the trainer tells them, they turn into events and alarms. Nothing here decides."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from esper.kasmina import Site, find_blueprint
from esper.leyline import Blend, EventType, Op, Severity, TelemetryEvent
from esper.nissa import Hub
from esper.nissa.events import (
    AnomalyDetected,
    DecisionsRecorded,
    EpisodeEnded,
    Payload,
    UpdateCompleted,
    UpdateExamined,
)
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.types import ActionDict, PPOUpdateMetrics
from esper.simic.config import TrainingConfig
from esper.simic.telemetry import (
    ADVICE,
    Anomaly,
    AnomalyDetector,
    AnomalyReport,
    GradientDrift,
    GradientEMATracker,
    LSTMHealth,
    SeedEpochs,
    TelemetryConfig,
    UpdateWatcher,
    compute_lstm_health,
)
from esper.simic.training.rounds import RoundTally
from esper.simic.training.world import GrowthWorld

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
        self._hub = hub
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
    def world_hub(self) -> Hub | None:
        """Where hosts tell what happens to them."""
        return Hub([self._hub, self._suspects]) if self.enabled else None

    @property
    def host_events(self) -> Severity:
        """The least severity of hosts' events that is wanted now."""
        least = self.levels.host_events
        return Severity.WARNING if least is None or not self._hub.listening else least

    def tell(self, payload: Payload, *, env_id: int | None = None) -> None:
        """Record something, if anything is recorded."""
        if self.enabled:
            self._hub.tell(payload, env_id=env_id, round_=self._round or None)

    def begin(self, round_number: int, agent: PPOAgent, world: GrowthWorld) -> None:
        """A round is about to be played."""
        self._round = round_number
        if not self.enabled:
            return
        # A resumed run has another agent.
        if self._watcher is None or self._watcher.agent is not agent:
            limits = self._detector.max_ratio_threshold, self._detector.min_ratio_threshold
            self._watcher = UpdateWatcher(agent, self.levels, *limits)
        agent.telemetry_config, agent.observer = self.levels, self._watcher
        world.tell_from(self.host_events)
        self._suspects.count = 0

    def collected(self, tally: RoundTally, agent: PPOAgent, world: GrowthWorld) -> None:
        """Its episodes are in the agent's buffer."""
        if not self.enabled:
            return
        # What the round showed of seeds and of the policy's memory.
        self._seeds = _seed_epochs(tally.seed_epochs, world, self._suspects.count)
        buffer = agent.buffer
        kept = buffer.hidden_storage == "all"
        states = (buffer.hidden_h[:, : buffer.num_steps], buffer.hidden_c[:, : buffer.num_steps])
        self._lstm = compute_lstm_health(states if kept else None)
        if self.levels.should_collect("normal") and self._hub.hears(Severity.INFO):
            self._tell_episodes(tally, agent, world)

    def updated(self, metrics: PPOUpdateMetrics, agent: PPOAgent) -> tuple[Anomaly, ...]:
        """The agent has learned from the round; returns the alarms."""
        if not self.enabled or self._watcher is None or metrics["empty"]:
            return ()
        gradients = self._watcher.take_gradients()
        drift = self._tracker.update(metrics["total_grad_norm"], gradients["gradient_health"])
        entropies = {name: metrics["head_choice_entropies"][name] for name, n in metrics["head_choices"].items() if n}
        self.tell(
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
            self.tell(UpdateExamined(ratios=records[0], stability=records[1]))
        # Alarms, which raise the level for the updates to come.
        anomalies = self._judge(metrics, entropies, drift).anomalies
        self.levels.update_done()
        if anomalies:
            self.levels.escalate()
        for anomaly in anomalies:
            advice = ADVICE[anomaly.kind]
            self.tell(
                AnomalyDetected(anomaly=anomaly.kind, message=anomaly.message, advice=advice, details=anomaly.details)
            )
        return anomalies

    def _judge(self, metrics: PPOUpdateMetrics, entropies: Mapping[str, float], drift: GradientDrift) -> AnomalyReport:
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
        )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on with."""
        return {"gradients": self._tracker.state_dict(), "escalation": self.levels.remaining}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._tracker.load_state_dict(state["gradients"])
        self.levels.remaining = state["escalation"]

    def _tell_episodes(self, tally: RoundTally, agent: PPOAgent, world: GrowthWorld) -> None:
        buffer = agent.buffer
        numbers = torch.stack([buffer.log_probs.sum(-1), buffer.values, buffer.rewards]).cpu()
        actions, steps = buffer.actions.tolist(), buffer.step_counts.tolist()
        ended = tally.rows()
        tasks = [task for task, hosts in world.by_task(buffer.step_counts).items() for _ in hosts]
        situations = world.situations()
        # Each episode with its means, and with its decisions by name.
        for index, task in enumerate(tasks):
            situation, row = situations[task], ended[index]
            added = 0 if row["dropped"] else int(row["added_params"])
            row |= {"added_params": added, "params": situation.host_params + added}
            self.tell(EpisodeEnded(task=task, steps=steps[index], **row), env_id=index)
            if steps[index]:
                rows = actions[index][: steps[index]]
                chosen = [ActionDict(slot=s, blueprint=b, blend=blend, op=op) for s, b, blend, op in rows]
                self.tell(_decisions(chosen, numbers[:, index, : steps[index]], situation.sites), env_id=index)


def _seed_epochs(counts: Tensor, world: GrowthWorld, suspected: int) -> SeedEpochs:
    """From counts per blueprint id; where tasks have other families, a blueprint goes by the names of all of them."""
    families = dict.fromkeys(site.shape.family for situation in world.situations().values() for site in situation.sites)
    names = [
        "/".join(dict.fromkeys(find_blueprint(family, index).name for family in families))
        for index in range(1, len(counts))
    ]
    trained, vanishing, exploding, judged = counts[1:].T.tolist()
    return SeedEpochs(
        dict(zip(names, trained, strict=True)),
        dict(zip(names, vanishing, strict=True)),
        dict(zip(names, exploding, strict=True)),
        sum(judged),
        suspected,
    )


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
    ops = [Op(action["op"]) for action in actions]
    slots = [sites[action["slot"]] for action in actions]
    planted = [op is Op.GERMINATE for op in ops]
    names = [
        find_blueprint(site.shape.family, action["blueprint"] + 1).name if grows else None
        for site, action, grows in zip(slots, actions, planted, strict=True)
    ]
    return DecisionsRecorded(
        op=[op.name for op in ops],
        slot=[None if op is Op.WAIT else site.slot_id for op, site in zip(ops, slots, strict=True)],
        blueprint=names,
        blend=[Blend(action["blend"]).name if grows else None for action, grows in zip(actions, planted, strict=True)],
        log_prob=log_prob,
        value=value,
        reward=reward,
    )


class _SuspectCounter:
    """A sink that counts seeds suspected of gaming their credit; one that both checks suspect counts once."""

    def __init__(self) -> None:
        self.count = 0

    def write(self, event: TelemetryEvent) -> None:
        """Count it, if it is one."""
        self.count += event.event_type in _SUSPICIONS

    def close(self) -> None:
        """Nothing to finish."""
