"""Nissa: what is recorded. The telemetry hub, typed events and sinks; sealed files of tensors in `state_files`."""

from esper.nissa.events import Payload, payload_of, read_events
from esper.nissa.hub import BackgroundSink, ConsoleSink, Hub, JsonLinesSink, MemorySink, Sink
from esper.nissa.trackers import check_sinks, make_sink, scalars_of

__all__ = [
    "BackgroundSink",
    "ConsoleSink",
    "Hub",
    "JsonLinesSink",
    "MemorySink",
    "Payload",
    "Sink",
    "check_sinks",
    "make_sink",
    "payload_of",
    "read_events",
    "scalars_of",
]
