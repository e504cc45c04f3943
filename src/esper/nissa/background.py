"""A sink behind a queue: the run never waits for a disk, a network or a library that somebody else wrote."""

import logging
import queue
import threading
import time

from esper.leyline import TelemetryEvent
from esper.nissa.events import EventsDropped
from esper.nissa.hub import Sink, sink_name

_LOG = logging.getLogger(__name__)
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
