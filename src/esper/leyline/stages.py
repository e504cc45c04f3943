"""The life of a seed: its stages, and which move leads from one to the next."""

from collections.abc import Mapping
from enum import Flag, IntEnum, auto
from types import MappingProxyType
from typing import Final


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
