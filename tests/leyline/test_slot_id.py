"""Slot ids: written one way, ordered by number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline import InputError, SlotConfig, SlotId
from esper.leyline.slot_id import sort_slot_ids


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_slot_ids_parse_back_to_themselves(row: int, col: int) -> None:
    assert SlotId.parse(str(SlotId(row, col))) == SlotId(row, col)


@pytest.mark.parametrize("text", ["", "r0", "c0", "r0c", "r-1c0", "R0C0", "r00c0", "r0c0 ", "r0c0\n", "r٣c0"])
def test_malformed_slot_ids_are_value_errors(text: str) -> None:
    with pytest.raises(ValueError, match="malformed slot id"):
        SlotId.parse(text)


def test_negative_slot_places_are_refused() -> None:
    with pytest.raises(InputError):
        SlotId(-1, 0)


def test_slot_ids_sort_by_number_as_slot_configs_do() -> None:
    assert sort_slot_ids(["r1c0", "r0c10", "r0c2"]) == ["r0c2", "r0c10", "r1c0"]
    assert sort_slot_ids(reversed(SlotConfig.of_size(12).slot_ids)) == list(SlotConfig.of_size(12).slot_ids)
