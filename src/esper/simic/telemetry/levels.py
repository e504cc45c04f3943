"""How much is recorded, and when that rises by itself."""

from dataclasses import dataclass

from esper.leyline import Severity, unknown_name

LEVELS = ("off", "minimal", "normal", "debug")
"""From nothing to everything; each level holds what the ones before it hold."""
_HOST_EVENTS = {"minimal": Severity.WARNING, "normal": Severity.INFO, "debug": Severity.DEBUG}
DEFAULT_ESCALATION = 5
"""Updates at debug level after an anomaly."""


@dataclass(slots=True)
class TelemetryConfig:
    """The level of a run. An anomaly raises it to debug for a few updates; another one starts the count again."""

    level: str = "normal"
    escalation_updates: int = DEFAULT_ESCALATION
    remaining: int = 0
    """Updates that escalation still lasts."""

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise unknown_name("telemetry level", self.level, LEVELS)

    @property
    def current(self) -> str:
        """The level now; a run that records nothing does not escalate."""
        return "debug" if self.remaining and self.level != "off" else self.level

    @property
    def host_events(self) -> Severity | None:
        """The least severity of hosts' events that is wanted now; None wants none."""
        return _HOST_EVENTS.get(self.current)

    def should_collect(self, level: str) -> bool:
        """Whether things of `level` are wanted now."""
        return level != "off" and LEVELS.index(level) <= LEVELS.index(self.current)

    def escalate(self) -> None:
        """Go to debug level for the next updates."""
        self.remaining = self.escalation_updates

    def update_done(self) -> None:
        """Count one update off."""
        self.remaining = max(0, self.remaining - 1)
