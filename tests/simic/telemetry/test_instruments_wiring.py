"""Alarms are wired: what an update, a round or a host shows reaches the check that is about it.

A real round is played once; each test changes one number of it. Whole runs with planted faults are in
`tests/simic/telemetry/test_alarms.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from esper.kasmina import num_blueprints
from esper.leyline import EventType
from esper.nissa import Hub, MemorySink
from esper.nissa.events import RansomwareSuspected
from esper.simic.agent.types import PPOUpdateMetrics
from esper.simic.telemetry import AnomalyKind, Instruments
from esper.simic.training import RoundReport, Trainer, collect_round
from esper.simic.training.world import RoundTally
from tests.simic.training.runs import tiny_config

KIND = AnomalyKind
ROUND = 30
"""Late enough for every check, early enough that a policy may not have decided."""
CONFIG = tiny_config(rounds=100)


@dataclass(frozen=True)
class Played:
    """A trainer with a round in its buffer, what that round showed, and the update on the one before."""

    trainer: Trainer
    outcome: RoundTally
    metrics: PPOUpdateMetrics


@pytest.fixture(scope="module")
def played() -> Played:
    torch.manual_seed(0)
    trainer = Trainer(CONFIG)
    collect_round(trainer.agent, trainer.world, 0)
    metrics = trainer.agent.update()
    return Played(trainer, collect_round(trainer.agent, trainer.world, 0), metrics)


def alarms(
    played: Played,
    *,
    seed_epochs: torch.Tensor | None = None,
    suspicions: int = 0,
    instruments: Instruments | None = None,
    **changes: Any,
) -> set[AnomalyKind]:
    """The alarms of an update that showed what the real one did, but for `changes`."""
    sink = MemorySink()
    watch, agent, world = instruments or Instruments(CONFIG, Hub([sink])), played.trainer.agent, played.trainer.world
    hosts = watch.world_hub
    watch.begin(ROUND, agent)
    for _ in range(suspicions):
        hosts.tell(RansomwareSuspected(epoch=3, contribution=60.0, total_improvement=-5.0, ratio=None), env_id=0)
    counts = torch.zeros(num_blueprints() + 1, 4, dtype=torch.int64) if seed_epochs is None else seed_epochs
    watch.collected(agent, world.situations(), counts, played.outcome.rows())
    healthy = {"explained_variance": 0.9, "explained_variance_after": 0.9, "value_mse_after": 0.0}
    metrics: Any = {**played.metrics, **healthy, **changes}
    found = {anomaly.kind for anomaly in watch.updated(metrics, agent)}
    if instruments is None:
        told = [event.payload["anomaly"] for event in sink.events if event.event_type is EventType.ANOMALY_DETECTED]
        assert set(told) == {kind.value for kind in found}
    return found


def test_a_healthy_update_raises_no_alarm(played: Played) -> None:
    assert alarms(played) == set()


def collapsed(played: Played, head: str) -> dict[str, Any]:
    return {"head_choice_entropies": {**played.metrics["head_choice_entropies"], head: 0.0}}


CASES: dict[str, tuple[Callable[[Played], dict[str, Any]], AnomalyKind]] = {
    "NaN": (lambda _: {"has_numerical_issue": True}, KIND.NUMERICAL_INSTABILITY),
    "high ratio": (lambda _: {"round_ratio_high": 99.0}, KIND.RATIO_EXPLOSION),
    "low ratio": (lambda _: {"round_ratio_low": 0.001}, KIND.RATIO_COLLAPSE),
    "KL": (lambda _: {"joint_kl": 9.0}, KIND.KL_SPIKE),
    "entropy of op": (lambda played: collapsed(played, "op"), KIND.ENTROPY_COLLAPSE),
    "entropy of slot": (lambda played: collapsed(played, "slot"), KIND.ENTROPY_COLLAPSE),
    "explained variance": (
        lambda _: {"explained_variance": -1.0, "explained_variance_after": 0.0},
        KIND.VALUE_COLLAPSE,
    ),
    "critic's error": (
        lambda played: {"value_mse_after": 9 * played.metrics["value_mse_before"]},
        KIND.VALUE_DIVERGENCE,
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_a_number_of_the_update_out_of_bounds_raises_its_alarm(what: str, played: Played) -> None:
    change, kind = CASES[what]
    assert alarms(played, **change(played)) == {kind}


def test_a_head_without_a_choice_has_not_collapsed(played: Played) -> None:
    choices = {**played.metrics["head_choices"], "op": 0}
    assert alarms(played, head_choices=choices, **collapsed(played, "op")) == set()


def test_a_gradient_far_from_its_running_mean_raises_the_alarm(played: Played) -> None:
    watch = Instruments(CONFIG, Hub())
    norms = [1.0, 1.0, 1.0, 1.0, 50.0]
    found = [alarms(played, instruments=watch, total_grad_norm=norm) for norm in norms]
    assert found == [set(), set(), set(), set(), {KIND.GRADIENT_DRIFT}]


@pytest.mark.parametrize(
    ("column", "kind"), [(1, KIND.SEED_GRADIENT_VANISHING), (2, KIND.SEED_GRADIENT_EXPLODING), (3, None)]
)
def test_seeds_that_cannot_learn_raise_the_alarm(column: int, kind: AnomalyKind | None, played: Played) -> None:
    counts = torch.zeros(num_blueprints() + 1, 4, dtype=torch.int64)
    counts[2, [0, column]] = 40
    assert alarms(played, seed_epochs=counts) == ({kind} if kind else set())


def test_suspicions_that_hosts_tell_of_raise_the_alarm(played: Played) -> None:
    counts = torch.zeros(num_blueprints() + 1, 4, dtype=torch.int64)
    counts[2, 3] = 40
    assert alarms(played, seed_epochs=counts, suspicions=30) == {KIND.REWARD_GAMING}
    assert alarms(played, seed_epochs=counts, suspicions=3) == set()


def test_a_memory_that_is_not_finite_raises_the_alarm(played: Played) -> None:
    memory = played.trainer.agent.buffer.hidden_c
    stored = memory.clone()
    memory[0, 3] = torch.inf
    found = alarms(played)
    memory.copy_(stored)
    assert found == {KIND.LSTM_UNHEALTHY}


def play_round(trainer: Trainer, sink: MemorySink, kind: EventType) -> tuple[RoundReport, list[Mapping[str, Any]]]:
    """One round of a run, and what was told of `kind`."""
    report = trainer._play_round()
    return report, [event.payload for event in sink.events if event.event_type is kind]


def test_a_nan_reward_is_an_alarm_of_its_round() -> None:
    sink = MemorySink()
    trainer = Trainer(tiny_config(rounds=1, twins=False), hub=Hub([sink]))
    step = trainer.world.step

    def spoiled(actions: torch.Tensor) -> Any:
        brought = step(actions)
        return replace(brought, rewards=brought.rewards.index_fill(0, torch.tensor([1]), torch.nan))

    trainer.world.step = spoiled  # type: ignore[method-assign]
    report, told = play_round(trainer, sink, EventType.ANOMALY_DETECTED)
    assert KIND.NUMERICAL_INSTABILITY in {anomaly.kind for anomaly in report.anomalies}
    assert KIND.NUMERICAL_INSTABILITY.value in [payload["anomaly"] for payload in told]


def test_the_gradients_that_the_watcher_saw_are_those_of_the_last_minibatch() -> None:
    sink = MemorySink()
    trainer = Trainer(tiny_config(rounds=1, twins=False), hub=Hub([sink]))
    report, told = play_round(trainer, sink, EventType.UPDATE_COMPLETED)
    last = report.metrics["gradient_stats"]
    assert last is not None
    assert [payload["gradients"]["gradient_norm"] for payload in told] == pytest.approx([last["grad_norm"]], rel=1e-4)
