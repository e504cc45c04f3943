"""Stages and their codes."""

from esper.leyline import (
    Stage,
)


def test_stage_codes_fill_the_observation_range() -> None:
    assert [stage.value for stage in Stage] == list(range(8))
    assert Stage.BLENDING.value == 3
