"""Numbers that several packages share: head names, sizes and the default hyper-parameters."""

from typing import Final

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
