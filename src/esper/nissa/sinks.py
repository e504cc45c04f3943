"""Sinks: a JSON-lines file, the console, a list in memory."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from esper.leyline import Severity, TelemetryEvent
from esper.nissa.events import SCHEMA_VERSION

_STYLES = {Severity.DEBUG: "dim", Severity.INFO: "", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}


def event_to_json(event: TelemetryEvent) -> dict[str, Any]:
    """`event` as JSON data; NaN and infinities, which JSON lacks, become null and strings."""
    return {
        "v": SCHEMA_VERSION,
        "type": event.event_type.value,
        "severity": event.severity.name,
        "timestamp": event.timestamp,
        "round": event.round,
        "env_id": event.env_id,
        "slot_id": event.slot_id,
        "payload": _plain(event.payload),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


class JsonLinesSink:
    """Appends one JSON object per line and flushes it, so that the file can be read while it is written.

    A line that a killed run left unfinished is ended first, so that it spoils nothing that follows.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        cut = _ends_in_the_middle(path)
        self._file = path.open("a", encoding="utf-8")
        if cut:
            self._file.write("\n")

    def write(self, event: TelemetryEvent) -> None:
        """Append `event`."""
        self._file.write(json.dumps(event_to_json(event), allow_nan=False, default=str) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _ends_in_the_middle(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read() != b"\n"


class ConsoleSink:
    """Prints events of at least a given severity, one line each."""

    def __init__(self, console: Console | None = None, minimum: Severity = Severity.INFO) -> None:
        self._console = console or Console(stderr=True)
        self._minimum = minimum

    def write(self, event: TelemetryEvent) -> None:
        """Print `event` if it matters enough."""
        if event.severity < self._minimum:
            return
        where = "" if event.env_id is None else f"host {event.env_id} "
        where += "" if event.slot_id is None else f"{event.slot_id} "
        details = ", ".join(f"{key} {value}" for key, value in event.payload.items())
        self._console.print(
            f"{where}{event.event_type.value}: {details}", style=_STYLES[event.severity], markup=False, soft_wrap=True
        )

    def close(self) -> None:
        """Nothing to finish."""


class MemorySink:
    """Keeps events in a list, for tests and for views that draw them."""

    def __init__(self) -> None:
        self.events: list[TelemetryEvent] = []

    def write(self, event: TelemetryEvent) -> None:
        """Keep `event`."""
        self.events.append(event)

    def close(self) -> None:
        """Nothing to finish."""
