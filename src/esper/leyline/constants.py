"""Numbers that several packages share: head names, sizes and the default hyper-parameters."""

from typing import Final

HEAD_NAMES: Final[tuple[str, ...]] = ("slot", "blueprint", "blend", "op")
"""Storage order of the action heads: the columns of `actions [N, 4]`, and of every per-head loop."""

NO_BLUEPRINT: Final = 0
"""Blueprint id of an empty slot; seeds carry ids from 1 on."""
DEFAULT_NUM_SLOTS: Final = 3

DEFAULT_GAMMA: Final = 1.0
"""The end of an episode is the end of the problem, so nothing that comes later counts less."""
DEFAULT_ADAM_EPS: Final = 1e-5
DEFAULT_NUM_ENVS: Final = 4
DEFAULT_EPISODE_LENGTH: Final = 25

TRAINING_EPOCHS: Final = 2
"""Epochs a seed learns in isolation before its gate opens."""
BLENDING_EPOCHS: Final = 3
"""Epochs over which alpha rises to 1, pauses aside."""
MAX_BLEND_PAUSES: Final = 2
"""How often a gated blend may stand still on a negative contribution."""
MAX_HOLDS: Final = 2
"""How often alpha may hold because the next one would cost too much; the seed is culled at the next time."""
TRIAL_TOLERANCE: Final = 0.01
"""By how much the validation score may fall with a seed's next alpha for that alpha to be taken: one point."""
MEASUREMENTS_BEFORE_CULL: Final = 2
"""Counterfactuals a seed is given, once it is blended in or being so, before it may be culled."""
EMBARGO_EPOCHS: Final = 1
"""Epochs spent in each of CULLED and EMBARGOED before a slot is free again."""
