"""The hub: events go in at one place and out to every sink."""

import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from esper.leyline import TelemetryEvent

_LOG = logging.getLogger(__name__)


class Sink(Protocol):
    """Somewhere events go."""

    def write(self, event: TelemetryEvent) -> None:
        """Take one event."""

    def close(self) -> None:
        """Finish; no event follows."""


class Hub:
    """Hands every event to every sink in order. A sink that fails is reported once and then left out.

    Telemetry observes: no failure here reaches the run that is being observed.
    """

    def __init__(self, sinks: Sequence[Sink] = ()) -> None:
        self._sinks = list(sinks)

    @property
    def listening(self) -> bool:
        """Whether any sink is there to take an event."""
        return bool(self._sinks)

    def emit(self, event: TelemetryEvent) -> None:
        """Publish `event`."""
        self._each(lambda sink: sink.write(event))

    def close(self) -> None:
        """Finish all sinks."""
        self._each(lambda sink: sink.close())

    def _each(self, do: Callable[[Sink], None]) -> None:
        for sink in list(self._sinks):
            try:
                do(sink)
            except Exception as error:
                self._sinks.remove(sink)
                _LOG.warning("telemetry sink %s failed and is left out from here on: %r", type(sink).__name__, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
