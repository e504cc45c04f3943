"""Slot ids: a row and a column, written `r0c2`, ordered by row and then column."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from esper.leyline.checks import InputError, check_field_types

_PATTERN = re.compile(r"r(0|[1-9][0-9]*)c(0|[1-9][0-9]*)")


@dataclass(frozen=True, order=True, slots=True)
class SlotId:
    """The place of one slot. Comparing ids compares numbers, so `r0c2` comes before `r0c10`."""

    row: int
    col: int

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.row < 0 or self.col < 0:
            raise InputError(f"slot id row {self.row}, column {self.col}: both must be 0 or more")

    @classmethod
    def parse(cls, text: str) -> Self:
        """The id written as `text`; anything but the canonical form is refused."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise InputError(f"malformed slot id {text!r}; write row and column as in 'r0c2'")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"r{self.row}c{self.col}"


def sort_slot_ids(slot_ids: Iterable[str]) -> list[str]:
    """`slot_ids` in the order of their places."""
    return sorted(slot_ids, key=SlotId.parse)
