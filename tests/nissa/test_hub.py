"""Telemetry: events reach every sink in order, and no sink can hurt a run."""

import io
import json
import logging
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from esper.leyline import EventType, Severity, TelemetryEvent
from esper.nissa import ConsoleSink, Hub, JsonLinesSink, MemorySink
from esper.nissa.events import GovernorRollback


def make_event(number: int = 0, **overrides: object) -> TelemetryEvent:
    values: dict[str, object] = {"event_type": EventType.EPOCH_COMPLETED, "payload": {"number": number}, "env_id": 2}
    return TelemetryEvent(**{**values, **overrides})  # type: ignore[arg-type]


class Broken:
    def __init__(self) -> None:
        self.calls = 0

    def write(self, event: TelemetryEvent) -> None:
        self.calls += 1
        raise OSError("disk full")

    def close(self) -> None:
        raise OSError("disk full")


def test_events_reach_every_sink_in_order() -> None:
    first, second = MemorySink(), MemorySink()
    with Hub([first, second]) as hub:
        for number in range(5):
            hub.emit(make_event(number))
    assert [event.payload["number"] for event in first.events] == list(range(5))
    assert first.events == second.events


def test_a_bound_hub_stamps_its_round_and_numbers_its_hosts() -> None:
    memory = MemorySink()
    hub = Hub([memory])
    later = hub.bind(round_=3).bind(first_host=8)
    later.bind(first_host=2).tell(GovernorRollback(reason="loss", panics=1), env_id=1, slot_id="r0c0")
    later.tell(GovernorRollback(reason="loss", panics=1))
    hub.tell(GovernorRollback(reason="loss", panics=1), env_id=1)
    assert [(event.round, event.env_id, event.slot_id) for event in memory.events] == [
        (3, 11, "r0c0"),
        (3, None, None),
        (None, 1, None),
    ]


def test_an_event_from_elsewhere_is_stamped_with_what_it_lacks() -> None:
    memory = MemorySink()
    hub = Hub([memory]).bind(round_=3, first_host=8)
    told, known = make_event(), make_event(round=7)
    hub.emit(told)
    hub.emit(known)
    assert memory.take() == [replace(told, round=3, env_id=10), replace(known, env_id=10)]
    assert memory.events == []


def test_a_sink_that_fails_for_a_bound_hub_is_left_out_for_all() -> None:
    broken = Broken()
    hub = Hub([broken])
    hub.bind(round_=1).emit(make_event())
    hub.emit(make_event())
    assert broken.calls == 1
    assert not hub.listening


def test_a_failing_sink_is_reported_once_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    broken, healthy = Broken(), MemorySink()
    with caplog.at_level(logging.WARNING), Hub([broken, healthy]) as hub:
        for number in range(3):
            hub.emit(make_event(number))
    assert broken.calls == 1
    assert len(healthy.events) == 3
    assert [record.message for record in caplog.records] == [
        "telemetry sink Broken failed and is left out from here on: OSError('disk full')"
    ]


def test_json_lines_parse_back_and_appear_at_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "events.jsonl"
    hub = Hub([JsonLinesSink(path)])
    hub.emit(
        make_event(
            7,
            slot_id="r0c1",
            payload={"loss": math.nan, "worst": -math.inf, "list": [1.5, math.inf], "path": Path("x")},
        )
    )
    (line,) = path.read_text().splitlines()  # before the hub is closed
    read = json.loads(line)
    assert read["type"] == "epoch_completed"
    assert (read["env_id"], read["slot_id"]) == (2, "r0c1")
    assert read["payload"] == {"loss": None, "worst": "-inf", "list": [1.5, "inf"], "path": "x"}
    hub.close()
    with Hub([JsonLinesSink(path)]) as again:
        again.emit(make_event())
    assert len(path.read_text().splitlines()) == 2  # appended


def test_the_console_shows_what_matters_enough() -> None:
    screen = io.StringIO()
    sink = ConsoleSink(Console(file=screen, width=200), minimum=Severity.WARNING)
    sink.write(make_event(severity=Severity.INFO))
    sink.write(make_event(3, severity=Severity.WARNING, slot_id="r0c0"))
    assert screen.getvalue() == "host 2 r0c0 epoch_completed: number 3\n"
