"""Nissa: what is recorded. The telemetry hub, typed events and sinks; sealed files of tensors in `state_files`."""

from esper.nissa.events import SCHEMA_VERSION, Payload, payload_of, read_events
from esper.nissa.hub import BackgroundSink, ConsoleSink, Hub, JsonLinesSink, MemorySink, Sink, event_to_json
from esper.nissa.trackers import check_sinks, make_sink, scalars_of, sink_names

__all__ = [
    "SCHEMA_VERSION",
    "BackgroundSink",
    "ConsoleSink",
    "Hub",
    "JsonLinesSink",
    "MemorySink",
    "Payload",
    "Sink",
    "check_sinks",
    "event_to_json",
    "make_sink",
    "payload_of",
    "read_events",
    "scalars_of",
    "sink_names",
]
