"""The hub: events go in at one place and out to every sink."""

import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from esper.leyline import Severity, TelemetryEvent
from esper.nissa.events import Payload

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

    @property
    def listening(self) -> bool:
        """Whether any sink is there to take an event."""
        return bool(self._sinks)

    def hears(self, severity: Severity) -> bool:
        """Whether an event of `severity` would be taken: ask before making one that costs something."""
        return bool(self._sinks) and severity >= self.least

    def emit(self, event: TelemetryEvent) -> None:
        """Publish `event`."""
        if event.severity >= self.least:
            self._each(lambda sink: sink.write(event))

    write = emit
    """A hub can be a sink of another one."""

    def tell(
        self, payload: Payload, *, env_id: int | None = None, slot_id: str | None = None, round_: int | None = None
    ) -> None:
        """Publish `payload` as an event of now."""
        if self.hears(payload.severity):
            self.emit(payload.event(env_id=env_id, slot_id=slot_id, round_=round_))

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
