"""Typed events: one record per kind, which comes back from the log as it was written."""

import json
import math
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from esper.leyline import EventType, InputError, Severity, TelemetryEvent
from esper.nissa import Hub, JsonLinesSink, MemorySink, payload_of, read_events
from esper.nissa.events import (
    PAYLOADS,
    SCHEMA_VERSION,
    EpisodeEnded,
    EpisodeStarted,
    GovernorRollback,
    Payload,
    SeedTransition,
)


def example(record: type[Payload]) -> Payload:
    """A record with something in every field that has no default."""
    hints = get_type_hints(record)
    values: dict[type, Any] = {int: 3, float: 0.5, str: "x", bool: True}
    given = {}
    for spec in fields(record):
        if spec.default is MISSING and spec.default_factory is MISSING:
            kind = hints[spec.name]
            given[spec.name] = values.get(kind, {"a": 1.0} if "Mapping" in str(kind) else None)
            if "Sequence" in str(kind):
                given[spec.name] = ["a"]
    return record(**given)


def test_every_kind_of_event_has_a_record() -> None:
    assert set(PAYLOADS) == set(EventType)


@pytest.mark.parametrize("kind", EventType)
def test_records_survive_the_log(kind: EventType, tmp_path: Path) -> None:
    record = example(PAYLOADS[kind])
    path = tmp_path / "events.jsonl"
    with Hub([JsonLinesSink(path)]) as hub:
        hub.bind(round_=2).tell(record, env_id=4, slot_id="r0c0")
    (event,) = read_events(path)
    assert payload_of(event) == record
    assert (event.env_id, event.slot_id, event.round) == (4, "r0c0", 2)
    assert event.severity is record.severity
    assert json.loads(path.read_text())["v"] == SCHEMA_VERSION


def test_numbers_that_json_lacks_are_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with Hub([JsonLinesSink(path)]) as hub:
        hub.tell(EpisodeEnded(val_score=math.nan, added_params=np.int64(2), params=3, price=np.float32(0.5)))  # type: ignore[arg-type]
    (event,) = read_events(path)
    read = event.payload["val_score"], event.payload["added_params"], event.payload["price"]
    assert read == (None, 2, 0.5)  # None: not known
    assert isinstance(payload_of(event), EpisodeEnded)


def test_a_keyword_of_python_can_be_a_key() -> None:
    move = SeedTransition(epoch=1, from_="DORMANT", to="GERMINATED", blueprint=None, rolled_back=False)
    assert move.event().payload["from"] == "DORMANT"


def write_log(path: Path, count: int) -> list[str]:
    with Hub([JsonLinesSink(path)]) as hub:
        for seed in range(count):
            hub.tell(EpisodeStarted(task="t", seed=seed, host_params=1))
    return path.read_text().splitlines(keepends=True)


def test_a_cut_last_line_is_left_out_and_spoils_nothing_that_follows(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = write_log(path, 3)
    path.write_text("".join(lines[:2]) + lines[2][:25])
    assert [event.payload["seed"] for event in read_events(path)] == [0, 1]
    write_log(path, 1)
    assert [event.payload["seed"] for event in read_events(path)] == [0, 1, 0]


def test_a_log_of_a_newer_esper_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    (line,) = write_log(path, 1)
    path.write_text(line.replace(f'"v": {SCHEMA_VERSION}', '"v": 99'))
    with pytest.raises(InputError, match="written by a newer Esper"):
        list(read_events(path))
    with pytest.raises(InputError, match="cannot be read"):
        list(read_events(tmp_path / "nothing"))


def test_unknown_fields_are_left_out_and_missing_ones_named() -> None:
    event = TelemetryEvent(EventType.GOVERNOR_ROLLBACK, {"reason": "loss", "panics": 1, "new": 2})
    assert payload_of(event) == GovernorRollback(reason="loss", panics=1)
    with pytest.raises(InputError, match="panics"):
        payload_of(TelemetryEvent(EventType.GOVERNOR_ROLLBACK, {"reason": "loss"}))


def test_a_hub_takes_only_what_is_severe_enough() -> None:
    sink = MemorySink()
    hub = Hub([sink], Severity.WARNING)
    hub.tell(EpisodeStarted(task="t", seed=0, host_params=1))
    hub.tell(GovernorRollback(reason="loss", panics=1))
    assert [event.event_type for event in sink.events] == [EventType.GOVERNOR_ROLLBACK]
    assert not hub.hears(Severity.INFO)
    assert not Hub().hears(Severity.ERROR)
