"""Nissa: what is recorded. The telemetry hub, typed events and sinks, and sealed files of tensors."""

from esper.nissa.background import BackgroundSink
from esper.nissa.events import SCHEMA_VERSION, Payload, payload_of
from esper.nissa.hub import Hub, Sink
from esper.nissa.reading import read_events
from esper.nissa.sinks import ConsoleSink, JsonLinesSink, MemorySink, event_to_json
from esper.nissa.state_files import pack_state, read_state
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
    "pack_state",
    "payload_of",
    "read_events",
    "read_state",
    "scalars_of",
    "sink_names",
]
