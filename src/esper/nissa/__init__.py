"""Nissa: what is recorded. The telemetry hub and its sinks."""

from esper.nissa.hub import Hub, Sink
from esper.nissa.sinks import ConsoleSink, JsonLinesSink, MemorySink, event_to_json

__all__ = ["ConsoleSink", "Hub", "JsonLinesSink", "MemorySink", "Sink", "event_to_json"]
