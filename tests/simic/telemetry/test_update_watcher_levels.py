"""Levels are ordered, and an anomaly raises them for a while."""

import pytest

from esper.leyline import InputError, Severity
from esper.simic.telemetry import LEVELS, TelemetryConfig


@pytest.mark.parametrize(
    ("level", "collected"), list(zip(LEVELS, ([], *(LEVELS[1:n] for n in (2, 3, 4))), strict=True))
)
def test_a_level_holds_those_below_it(level: str, collected: list[str]) -> None:
    config = TelemetryConfig(level)
    assert [name for name in LEVELS if config.should_collect(name)] == list(collected)


def test_an_anomaly_raises_the_level_and_another_one_extends_it() -> None:
    config = TelemetryConfig("normal", escalation_updates=3)
    config.escalate()
    seen = []
    for update in range(6):
        seen.append(config.current)
        config.update_done()
        if update == 1:
            config.escalate()
    assert seen == ["debug"] * 5 + ["normal"]
    assert TelemetryConfig("normal").host_events is Severity.INFO


def test_a_run_that_records_nothing_does_not_escalate() -> None:
    config = TelemetryConfig("off")
    config.escalate()
    assert config.current == "off"
    assert config.host_events is None
    with pytest.raises(InputError, match="unknown telemetry level 'loud'"):
        TelemetryConfig("loud")
