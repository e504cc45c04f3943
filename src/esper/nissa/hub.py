"""The hub, where events go in at one place and out to every sink, and the sinks: a file, the console, a list."""

import json
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from rich.console import Console

from esper.leyline import Severity, TelemetryEvent
from esper.nissa.events import SCHEMA_VERSION, EventsDropped, Payload

_LOG = logging.getLogger(__name__)


class Sink(Protocol):
    """Somewhere events go."""

    def write(self, event: TelemetryEvent) -> None:
        """Take one event."""

    def close(self) -> None:
        """Finish; no event follows."""


class Hub:
    """Hands every event to every sink in order. A sink that fails is reported once and then left out.

    Telemetry observes: no failure here reaches the run that is being observed. A sink that may be slow belongs into a
    `BackgroundSink`, which drops and counts where it would otherwise make the run wait.
    """

    def __init__(self, sinks: Sequence[Sink] = (), least: Severity = Severity.DEBUG) -> None:
        self._sinks = list(sinks)
        self.least = least
        """Events below this are not taken."""
        self._round: int | None = None
        self._first_host = 0

    def bind(self, *, round_: int | None = None, first_host: int = 0) -> Self:
        """The same hub for events of a round, or of hosts that are counted from `first_host` on here.

        What is bound is stamped on every event where it is made. What this hub is bound to holds too.
        """
        bound = copy(self)  # with the same list of sinks: one that fails is left out everywhere
        bound._round = self._round if round_ is None else round_
        bound._first_host = self._first_host + first_host
        return bound

    @property
    def listening(self) -> bool:
        """Whether any sink is there to take an event."""
        return bool(self._sinks)

    def hears(self, severity: Severity) -> bool:
        """Whether an event of `severity` would be taken: ask before making one that costs something."""
        return bool(self._sinks) and severity >= self.least

    def tell(self, payload: Payload, *, env_id: int | None = None, slot_id: str | None = None) -> None:
        """Publish `payload` as an event of now."""
        if self.hears(payload.severity):
            event = payload.event(env_id=self._numbered(env_id), slot_id=slot_id, round_=self._round)
            self._each(lambda sink: sink.write(event))

    def emit(self, event: TelemetryEvent) -> None:
        """Publish an event that was made in another thread or process, as if it had been told here."""
        if event.severity >= self.least:
            round_ = self._round if event.round is None else event.round
            stamped = replace(event, env_id=self._numbered(event.env_id), round=round_)
            self._each(lambda sink: sink.write(stamped))

    write = emit
    """A hub can be a sink of another one."""

    def _numbered(self, env_id: int | None) -> int | None:
        return None if env_id is None else self._first_host + env_id

    def close(self) -> None:
        """Finish all sinks."""
        self._each(lambda sink: sink.close())

    def _each(self, do: Callable[[Sink], None]) -> None:
        for sink in list(self._sinks):
            try:
                do(sink)
            except Exception as error:
                self._sinks.remove(sink)
                _LOG.warning("telemetry sink %s failed and is left out from here on: %r", sink_name(sink), error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def sink_name(sink: Sink) -> str:
    """What to call a sink in a report about it; a wrapper goes by the name of what it wraps."""
    return str(getattr(sink, "name", type(sink).__name__))


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
        "payload": json_value(event.payload),
    }


def json_value(value: Any) -> Any:
    """`value` with what JSON lacks replaced: NaN by null, infinities by strings, arrays by lists."""
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, np.generic | np.ndarray):
        return json_value(value.tolist())
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
        self._file.write(json.dumps(event_to_json(event), allow_nan=False, default=str) + "\n")
        self._file.flush()

    def close(self) -> None:
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
        self.events.append(event)

    def take(self) -> list[TelemetryEvent]:
        """What was kept since the last time."""
        taken, self.events = self.events, []
        return taken

    def close(self) -> None:
        """Nothing to finish."""


_CAPACITY = 20_000
"""Events that may wait: several rounds, a few megabytes."""
_PATIENCE = 10.0
"""Seconds that closing waits for what is still in the queue."""
_FLUSH_PATIENCE = 2.0
"""Seconds that `flush` waits at most."""


class BackgroundSink:
    """Writes to `sink` in a thread of its own, in order.

    Where the queue is full, events are dropped and counted; the gap is told to the sink itself once it keeps up again,
    and logged at the end. A sink that raises is reported by the next `write`, so that the hub leaves it out.
    """

    def __init__(self, sink: Sink, capacity: int = _CAPACITY, patience: float = _PATIENCE) -> None:
        self.name = sink_name(sink)
        self.dropped = 0
        """Events that were not written."""
        self._sink = sink
        self._patience = patience
        self._queue: queue.Queue[TelemetryEvent | None] = queue.Queue(capacity)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name=f"telemetry-{self.name}", daemon=True)
        self._thread.start()

    def write(self, event: TelemetryEvent) -> None:
        """Take `event` without waiting."""
        self._raise_error()
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self.dropped += 1

    def flush(self) -> None:
        """Wait until what was taken so far is written, so that not even a kill loses it; not for a sink that hangs."""
        with self._queue.all_tasks_done:
            self._queue.all_tasks_done.wait_for(lambda: not self._queue.unfinished_tasks, _FLUSH_PATIENCE)

    def close(self) -> None:
        """Write what is left, but wait no longer than the patience allows."""
        deadline = time.monotonic() + self._patience
        try:
            self._queue.put(None, timeout=self._patience)
            self._thread.join(max(0.0, deadline - time.monotonic()))
        except queue.Full:
            pass
        if self._thread.is_alive():
            self.dropped += self._queue.qsize()
        if self.dropped:
            _LOG.warning("telemetry sink %s was too slow: %d events are missing in it", self.name, self.dropped)
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _work(self) -> None:
        told = 0
        try:
            while (event := self._queue.get()) is not None:
                self._sink.write(event)
                self._queue.task_done()
                missing = self.dropped - told
                if missing:
                    told += missing
                    self._sink.write(EventsDropped(sink=self.name, count=missing).event(round_=event.round))
            self._sink.close()
        except Exception as error:
            self._error = error
