"""Ranges: shown with their ends, and given to every number of a config."""

from dataclasses import fields

import pytest

from esper.leyline import InputError
from esper.simic.config import Phase, Range, TrainingConfig
from esper.simic.config.checking import Group


@pytest.mark.parametrize("ends", ["[]", "[)", "(]", "()"])
def test_the_interval_is_shown_with_its_ends(ends: str) -> None:
    with pytest.raises(InputError) as error:
        Range(0, 1, ends).check("x", 2.0)
    assert str(error.value) == f"x must be in {ends[0]}0, 1{ends[1]}; got 2.0"
    for end, bracket, mark in ((0, ends[0], "["), (1, ends[1], "]")):
        if bracket == mark:
            Range(0, 1, ends).check("x", end)
        else:
            with pytest.raises(InputError, match="x must be in"):
                Range(0, 1, ends).check("x", end)


def test_every_number_has_a_range() -> None:
    def numbers(group: type[Group]) -> set[str]:
        plain = {
            spec.name for spec in fields(group) if str(spec.type) in ("int", "float", "int | None", "float | None")
        }
        return {f"{group.__name__}.{name}" for name in plain}

    groups = [type(getattr(TrainingConfig(), name)) for name in ("world", "learner", "lessons", "telemetry")]
    assert set().union(*map(numbers, [TrainingConfig, Phase, *groups])) == set()
