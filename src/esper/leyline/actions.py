"""The factored action: which op, in which slot, with which blueprint and blend."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final, Self

from esper.leyline.checks import check_field_types
from esper.leyline.constants import BLENDING_EPOCHS, HEAD_NAMES, TRAINING_EPOCHS
from esper.leyline.errors import InputError


class Op(IntEnum):
    """What the controller can do in one step."""

    WAIT = 0
    GERMINATE = 1
    FOSSILIZE = 2
    CULL = 3


class Blend(IntEnum):
    """How a seed is blended in: its alpha rises from 0 to 1 along one of three ways, or is 1 from the start."""

    LINEAR = 0
    SIGMOID = 1
    GATED = 2
    INSTANT = 3


NUM_OPS: Final = len(Op)
NUM_BLENDS: Final = len(Blend)

EPOCHS_TO_DECIDE: Final[Mapping[Blend, int]] = MappingProxyType(
    {blend: 2 if blend is Blend.INSTANT else TRAINING_EPOCHS + BLENDING_EPOCHS + 1 for blend in Blend}
)
"""Epochs from the germination of a seed until it can have been kept, at best: until it has been measured at alpha 1,
and one for the decision."""


@dataclass(frozen=True, slots=True)
class Action:
    """One decision for one host. Heads that do not matter for the op are 0."""

    op: Op = Op.WAIT
    slot: int = 0
    blueprint: int = 0
    """Index of the blueprint head, from 0 on; the blueprint id in tables and observations is this plus one."""
    blend: Blend = Blend.LINEAR

    def __post_init__(self) -> None:
        check_field_types(self)
        for name in ("slot", "blueprint"):
            if getattr(self, name) < 0:
                raise InputError(f"action {name} {getattr(self, name)} is negative")

    def to_dict(self) -> dict[str, int]:
        """Plain integers keyed in `HEAD_NAMES` order, the column order of `actions [N, 4]`."""
        return {name: int(getattr(self, name)) for name in HEAD_NAMES}

    @classmethod
    def from_dict(cls, values: Mapping[str, int]) -> Self:
        """The action whose head indices are `values`; exactly the keys of `HEAD_NAMES` are allowed."""
        if set(values) != set(HEAD_NAMES):
            raise InputError(f"an action needs exactly the keys {', '.join(HEAD_NAMES)}; got {', '.join(values)}")
        try:
            return cls(Op(values["op"]), values["slot"], values["blueprint"], Blend(values["blend"]))
        except ValueError as error:
            raise InputError(f"not an action: {dict(values)} ({error})") from None
