"""The instruments of a run: alarms reach the log, raise the level for a while, and change nothing that is learned."""

import math
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import esper
from esper.leyline import EventType, TelemetryEvent
from esper.nissa import Hub, MemorySink, payload_of, read_events
from esper.nissa.events import UpdateCompleted
from esper.simic.agent.update_log import empty_metrics
from esper.simic.telemetry import AnomalyKind
from esper.simic.telemetry.instruments import value_growth
from esper.simic.training import Trainer, collect_round
from tests.simic.agent.test_ppo_transfers import ReadCounter
from tests.simic.training.runs import assert_same_run, tiny_config

ALARMING = {"max_ratio": 1.0001}
"""Any movement of the policy is an alarm now."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, recorded in four ways."""
    folder = tmp_path_factory.mktemp("runs")
    esper.train(tiny_config(rounds=3), folder / "normal")
    esper.train(tiny_config(rounds=3, telemetry="off"), folder / "off")
    esper.train(tiny_config(rounds=3, telemetry="minimal"), folder / "minimal")
    esper.train(tiny_config(rounds=3, **ALARMING), folder / "alarmed")
    return folder


def of_kind(run: Path, kind: EventType) -> list[TelemetryEvent]:
    return [event for event in read_events(run / "events.jsonl") if event.event_type is kind]


def test_an_alarm_is_recorded_and_raises_the_level_from_the_next_round_on(runs: Path) -> None:
    alarms = of_kind(runs / "alarmed", EventType.ANOMALY_DETECTED)
    assert [(event.round, event.payload["anomaly"]) for event in alarms][:1] == [(1, "ratio_explosion")]
    assert "lower `learner.lr`" in str(alarms[0].payload["advice"])
    levels = [event.payload["level"] for event in of_kind(runs / "alarmed", EventType.UPDATE_COMPLETED)]
    assert levels == ["normal", "debug", "debug"]
    for kind in (EventType.UPDATE_EXAMINED, EventType.EPOCH_COMPLETED):
        assert {event.round for event in of_kind(runs / "alarmed", kind)} == {2, 3}
        assert of_kind(runs / "normal", kind) == []


def test_no_way_of_recording_changes_what_is_learned(runs: Path) -> None:
    for name in ("off", "minimal", "alarmed"):
        assert_same_run(runs / "normal", runs / name)


def test_less_is_recorded_at_lower_levels(runs: Path) -> None:
    assert not (runs / "off" / "events.jsonl").read_text()
    kinds = {event.event_type for event in read_events(runs / "minimal" / "events.jsonl")}
    assert {EventType.ROUND_COMPLETED, EventType.UPDATE_COMPLETED, EventType.CHECKPOINT_SAVED} <= kinds
    assert not kinds & {EventType.EPISODE_STARTED, EventType.EPISODE_ENDED, EventType.DECISIONS_RECORDED}


def test_lessons_are_recorded_at_the_level_of_the_run(tmp_path: Path) -> None:
    taught = {"teacher": "schedule", "lessons": 1, "lesson_passes": 1, "rounds": 1, "envs": 2, "episode_length": 4}
    for level in ("minimal", "normal"):
        esper.train(tiny_config(telemetry=level, validation_episodes=1, **taught), tmp_path / level)
    of_lessons = {
        level: {event.event_type for event in read_events(tmp_path / level / "events.jsonl") if event.round == 0}
        for level in ("minimal", "normal")
    }
    assert EventType.EPISODE_STARTED in of_lessons["normal"]
    assert not of_lessons["minimal"]
    assert len(of_kind(tmp_path / "minimal", EventType.LESSON_COMPLETED)) == 1


def numbers(value: object) -> Iterator[float]:
    if isinstance(value, dict):
        for item in value.values():
            yield from numbers(item)
    elif isinstance(value, int | float):
        yield float(value)


def test_updates_are_recorded_whole_and_finite(runs: Path) -> None:
    updates = of_kind(runs / "normal", EventType.UPDATE_COMPLETED)
    assert [event.round for event in updates] == [1, 2, 3]
    for event in updates:
        assert set(event.payload) == {spec.name for spec in fields(UpdateCompleted)}
        assert None not in event.payload.values()
        assert all(math.isfinite(number) for number in numbers(event.payload))
        payload_of(event)


def test_every_episode_is_recorded_with_its_decisions(runs: Path) -> None:
    ended, decided = (
        of_kind(runs / "normal", kind) for kind in (EventType.EPISODE_ENDED, EventType.DECISIONS_RECORDED)
    )
    places = [(number, host) for number in (1, 2, 3) for host in range(4)]
    assert [(event.round, event.env_id) for event in ended] == places
    for episode, decisions in zip(ended, decided, strict=True):
        told: dict[str, Any] = dict(decisions.payload)
        assert {len(column) for column in told.values()} == {8}
        assert sum(told["reward"]) == pytest.approx(episode.payload["return"], abs=1e-3)
        ops: Any = episode.payload["ops"]
        assert {op: told["op"].count(op) for op in ops} == ops
        planted = [op == "GERMINATE" for op in told["op"]]
        assert [name is not None for name in told["blueprint"]] == planted
        assert [name is not None for name in told["slot"]] == [op != "WAIT" for op in told["op"]]
    rounds = of_kind(runs / "normal", EventType.ROUND_COMPLETED)
    means: Any = rounds[0].payload["objective"]
    first = [float(str(event.payload["objective"])) for event in ended[:4]]
    assert sum(first) / 4 == pytest.approx(next(iter(means.values())), abs=1e-6)


class PolicyReads(ReadCounter):
    """Counts reads of anything, integers too, except while the world moves: hosts tell of themselves on the CPU."""

    ignored = ()

    def leave_out(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def uncounted(*args: Any, **kwargs: Any) -> Any:
            before = self.reads
            result = run(*args, **kwargs)
            self.reads = before
            return result

        return uncounted


def test_playing_a_round_reads_no_more_from_the_device_when_watched() -> None:
    reads = {}
    for level in ("off", "normal", "debug"):
        sink = MemorySink()
        trainer = Trainer(tiny_config(telemetry=level), hub=Hub([sink]))
        trainer._instruments.begin(1, trainer.agent)
        counter, world = PolicyReads(), trainer.world
        world.reset, world.step = counter.leave_out(world.reset), counter.leave_out(world.step)  # type: ignore[method-assign]
        with counter:
            collect_round(trainer.agent, world, 0)
        reads[level] = counter.reads
        assert bool(sink.events) == (level != "off")
        world.close()
    assert reads["off"] == reads["normal"] == reads["debug"] > 0


def test_an_unhealthy_memory_is_an_alarm() -> None:
    sink = MemorySink()
    trainer = Trainer(tiny_config(rounds=1), hub=Hub([sink]))
    trainer._instruments._detector.lstm_limit = 0.0
    trainer.run()
    assert [event.payload["anomaly"] for event in sink.events if event.event_type is EventType.ANOMALY_DETECTED] == [
        "lstm_unhealthy"
    ]


def test_the_entropy_flag_follows_the_config() -> None:
    flags = []
    for limit in (0.0, 1.0):
        sink = MemorySink()
        Trainer(tiny_config(rounds=2, entropy_limit=limit), hub=Hub([sink])).run()
        updates = (event for event in sink.events if event.event_type is EventType.UPDATE_COMPLETED)
        flags.append(next(updates).payload["entropy_collapsed"])
    assert flags[0] == []
    assert "op" in flags[1]  # type: ignore[operator]


def test_a_saved_instrument_goes_on_where_it_was() -> None:
    trainer, other = Trainer(tiny_config(rounds=2, **ALARMING)), Trainer(tiny_config())
    trainer.run()
    other._instruments.load_state_dict(trainer._instruments.state_dict())
    assert other._instruments.state_dict() == trainer._instruments.state_dict()
    assert other._instruments.levels.current == "debug"


def test_an_empty_update_is_no_alarm() -> None:
    trainer = Trainer(tiny_config())
    trainer._instruments.begin(1, trainer.agent)
    assert trainer._instruments.updated(trainer.agent.update(), trainer.agent) == ()


@pytest.mark.parametrize(
    ("mse_after", "explained_after", "growth"), [(0.5, 0.6, 0.8), (3.0, 0.5, 3.0), (0.5, -0.5, 3.0)]
)
def test_a_critic_grows_worse_by_its_error_or_by_the_spread_of_it(
    mse_after: float, explained_after: float, growth: float
) -> None:
    metrics = empty_metrics(Trainer(tiny_config()).agent.spec, 1.0)
    assert value_growth(metrics) is None
    metrics["optimizer_steps"], metrics["value_mse_before"], metrics["explained_variance"] = 1, 1.0, 0.5
    metrics["value_mse_after"], metrics["explained_variance_after"] = mse_after, explained_after
    assert value_growth(metrics) == pytest.approx(growth)


def test_a_new_critic_may_overshoot_but_an_older_one_may_not() -> None:
    trainer = Trainer(tiny_config())
    found = []
    for number in (1, 2, 3):
        trainer._instruments.begin(number, trainer.agent)
        tally = collect_round(trainer.agent, trainer.world, number)
        situations = trainer.world.situations()
        trainer._instruments.collected(trainer.agent, situations, tally.seed_epochs, tally.rows())
        metrics = trainer.agent.update()
        metrics["value_mse_after"] = 2 * metrics["value_mse_before"]
        found.append([anomaly.kind for anomaly in trainer._instruments.updated(metrics, trainer.agent)])
    assert [AnomalyKind.VALUE_DIVERGENCE in kinds for kinds in found] == [False, False, True]
