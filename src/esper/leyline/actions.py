"""The vocabulary of growth: stages of a seed, ops, blends, and the factored action."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, IntEnum, auto
from types import MappingProxyType
from typing import Final, Self

from esper.leyline.checks import InputError, check_field_types

HEAD_NAMES: Final[tuple[str, ...]] = ("slot", "blueprint", "blend", "op")
"""Storage order of the action heads: the columns of `actions [N, 4]`, and of every per-head loop."""

NO_BLUEPRINT: Final = 0
"""Blueprint id of an empty slot; seeds carry ids from 1 on."""

DEFAULT_GAMMA: Final = 1.0
"""The end of an episode is the end of the problem, so nothing that comes later counts less."""
DEFAULT_ADAM_EPS: Final = 1e-5
DEFAULT_NUM_ENVS: Final = 4
DEFAULT_EPISODE_LENGTH: Final = 25

TRAINING_EPOCHS: Final = 2
"""Epochs a seed learns in isolation before its gate opens."""
BLENDING_EPOCHS: Final = 3
"""Epochs over which alpha rises to 1, pauses aside."""


class Stage(IntEnum):
    """Where the content of a slot stands; the codes are part of the observation (code / 7)."""

    DORMANT = 0
    GERMINATED = 1
    TRAINING = 2
    BLENDING = 3
    HOLDING = 4
    FOSSILIZED = 5
    CULLED = 6
    EMBARGOED = 7


class Mover(Flag):
    """Who may make a transition happen; for some, both."""

    ACTION = auto()
    ENVIRONMENT = auto()


TRANSITIONS: Final[Mapping[tuple[Stage, Stage], Mover]] = MappingProxyType(
    {
        (Stage.DORMANT, Stage.GERMINATED): Mover.ACTION,
        (Stage.GERMINATED, Stage.TRAINING): Mover.ENVIRONMENT,
        (Stage.GERMINATED, Stage.HOLDING): Mover.ENVIRONMENT,
        (Stage.GERMINATED, Stage.CULLED): Mover.ENVIRONMENT,
        (Stage.TRAINING, Stage.BLENDING): Mover.ENVIRONMENT,
        (Stage.TRAINING, Stage.CULLED): Mover.ENVIRONMENT,
        (Stage.BLENDING, Stage.HOLDING): Mover.ENVIRONMENT,
        (Stage.BLENDING, Stage.CULLED): Mover.ACTION | Mover.ENVIRONMENT,
        (Stage.HOLDING, Stage.FOSSILIZED): Mover.ACTION,
        (Stage.HOLDING, Stage.CULLED): Mover.ACTION,
        (Stage.CULLED, Stage.EMBARGOED): Mover.ENVIRONMENT,
        (Stage.EMBARGOED, Stage.DORMANT): Mover.ENVIRONMENT,
    }
)
"""Every legal move. Masks and lifecycle both derive from this table, so they cannot disagree."""


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
