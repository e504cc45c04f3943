"""Constants that packages share."""

from esper.leyline import (
    HEAD_NAMES,
)


def test_head_names_are_a_tuple_in_storage_order() -> None:
    assert HEAD_NAMES == ("slot", "blueprint", "blend", "op")
    assert isinstance(HEAD_NAMES, tuple)
