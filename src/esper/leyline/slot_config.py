"""Which slots a host has, and in which order tables and observations list them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from esper.leyline.checks import InputError, check_field_types, unknown_name
from esper.leyline.slot_id import SlotId, sort_slot_ids

_DEFAULT_SLOTS = 3


@dataclass(frozen=True, slots=True)
class SlotConfig:
    """The ordered slot ids of a host: hashable, and convertible to plain types for checkpoints."""

    slot_ids: tuple[str, ...]

    def __post_init__(self) -> None:
        check_field_types(self)
        if not self.slot_ids:
            raise InputError("a slot config needs at least one slot id")
        if len(set(self.slot_ids)) != len(self.slot_ids):
            raise InputError(f"slot ids repeat: {', '.join(self.slot_ids)}")
        if list(self.slot_ids) != sort_slot_ids(self.slot_ids):
            raise InputError(f"slot ids are out of order; write {', '.join(sort_slot_ids(self.slot_ids))}")

    @property
    def num_slots(self) -> int:
        """How many slots there are (the S of every `[N, S]` tensor)."""
        return len(self.slot_ids)

    @classmethod
    def of_size(cls, num_slots: int) -> Self:
        """`num_slots` slots in one row: r0c0, r0c1, …"""
        return cls(tuple(str(SlotId(0, col)) for col in range(num_slots)))

    @classmethod
    @cache
    def default(cls) -> Self:
        """The default three slots; always the same instance."""
        return cls.of_size(_DEFAULT_SLOTS)

    def index(self, slot_id: str) -> int:
        """The position of `slot_id` in every `[N, S]` tensor."""
        if slot_id not in self.slot_ids:
            raise unknown_name("slot", slot_id, self.slot_ids)
        return self.slot_ids.index(slot_id)

    def to_dict(self) -> dict[str, list[str]]:
        """Built-in types only, so that a checkpoint holding it loads with `weights_only=True`."""
        return {"slot_ids": list(self.slot_ids)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        if not isinstance(data, Mapping) or set(data) != {"slot_ids"}:
            raise InputError("a slot config holds exactly the key 'slot_ids'")
        if not isinstance(data["slot_ids"], list | tuple):
            raise InputError("slot_ids must be a list of slot ids such as 'r0c2'")
        return cls(tuple(data["slot_ids"]))
