"""A slow or failing sink costs the run nothing but its own record."""

import logging
import threading
import time

import pytest

from esper.leyline import EventType, TelemetryEvent
from esper.nissa import BackgroundSink, Hub, MemorySink
from tests.nissa.test_hub import Broken, make_event


class Slow(MemorySink):
    """Writes nothing until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()

    def write(self, event: TelemetryEvent) -> None:
        self.may.wait()
        super().write(event)


def test_events_arrive_in_order_and_closing_waits_for_them() -> None:
    sink = MemorySink()
    with Hub([BackgroundSink(sink)]) as hub:
        for number in range(100):
            hub.emit(make_event(number))
    assert [event.payload["number"] for event in sink.events] == list(range(100))


def test_a_slow_sink_drops_with_a_count_and_never_blocks(caplog: pytest.LogCaptureFixture) -> None:
    sink = Slow()
    background = BackgroundSink(sink, capacity=10)
    hub = Hub([background])
    start = time.perf_counter()
    for number in range(50):
        hub.emit(make_event(number))
    assert time.perf_counter() - start < 1.0
    assert background.dropped >= 39
    missing = background.dropped
    sink.may.set()
    with caplog.at_level(logging.WARNING):
        hub.close()
    (gap,) = (event for event in sink.events if event.event_type is EventType.EVENTS_DROPPED)
    assert gap.payload == {"sink": "Slow", "count": missing}
    assert len(sink.events) == 50 - missing + 1
    assert f"{missing} events are missing" in caplog.text


def test_flushing_waits_until_everything_is_written() -> None:
    sink = Slow()
    background = BackgroundSink(sink)
    for number in range(20):
        background.write(make_event(number))
    threading.Timer(0.05, sink.may.set).start()
    background.flush()
    assert len(sink.events) == 20
    background.close()


def test_flushing_gives_up_on_a_sink_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.nissa.hub._FLUSH_PATIENCE", 0.05)
    sink = Slow()
    background = BackgroundSink(sink)
    background.write(make_event(0))
    background.flush()
    assert not sink.events
    sink.may.set()
    background.close()


def test_a_sink_that_hangs_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture) -> None:
    sink = Slow()
    background = BackgroundSink(sink, patience=0.1)
    start = time.perf_counter()
    with caplog.at_level(logging.WARNING), Hub([background]) as hub:
        for number in range(5):
            hub.emit(make_event(number))
    assert time.perf_counter() - start < 2.0
    assert "Slow was too slow" in caplog.text
    sink.may.set()


def test_a_failing_sink_is_reported_once_by_its_own_name(caplog: pytest.LogCaptureFixture) -> None:
    healthy = MemorySink()
    hub = Hub([BackgroundSink(Broken()), healthy])
    with caplog.at_level(logging.WARNING):
        for number in range(200):
            hub.emit(make_event(number))
            time.sleep(0.001)
        hub.close()
    assert [record.message for record in caplog.records] == [
        "telemetry sink Broken failed and is left out from here on: OSError('disk full')"
    ]
    assert len(healthy.events) == 200
