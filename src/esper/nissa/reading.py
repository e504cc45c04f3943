"""Reading a log of events, also one that is being written or was cut off."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from esper.leyline import EventType, InputError, Severity, TelemetryEvent
from esper.nissa.events import SCHEMA_VERSION


def read_events(path: Path) -> Iterator[TelemetryEvent]:
    """The events of a JSON-lines file, in order; lines that were cut off and kinds that are not known are left out."""
    try:
        file = path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    with file:
        for line in file:
            try:
                data = json.loads(line)
            except ValueError:
                continue
            event = _event(data, path)
            if event is not None:
                yield event


def _event(data: Any, path: Path) -> TelemetryEvent | None:
    if not isinstance(data, dict) or data.get("type") not in {kind.value for kind in EventType}:
        return None
    if data.get("v", SCHEMA_VERSION) > SCHEMA_VERSION:
        raise InputError(f"{path} was written by a newer Esper (schema {data['v']}; this one reads {SCHEMA_VERSION})")
    return TelemetryEvent(
        EventType(data["type"]),
        data["payload"],
        Severity[data["severity"]],
        data["env_id"],
        data["slot_id"],
        data.get("round"),
        data["timestamp"],
    )
