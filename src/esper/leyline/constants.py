"""Numbers that several packages share: head names, sizes and the default hyper-parameters."""

from typing import Final

HEAD_NAMES: Final[tuple[str, ...]] = ("slot", "blueprint", "blend", "op")
"""Storage order of the action heads: the columns of `actions [N, 4]`, and of every per-head loop."""

NO_BLUEPRINT: Final = 0
"""Blueprint id of an empty slot; seeds carry ids from 1 on."""

DEFAULT_GAMMA: Final = 0.995
DEFAULT_GAE_LAMBDA: Final = 0.95
DEFAULT_LEARNING_RATE: Final = 3e-4
DEFAULT_CLIP_RATIO: Final = 0.2
DEFAULT_VALUE_CLIP: Final = 10.0
DEFAULT_VALUE_COEF: Final = 0.5
DEFAULT_ENTROPY_COEF: Final = 0.05
DEFAULT_ENTROPY_COEF_MIN: Final = 0.01
DEFAULT_MAX_GRAD_NORM: Final = 0.5
DEFAULT_TARGET_KL: Final = 0.015
DEFAULT_ADAM_EPS: Final = 1e-5
DEFAULT_LSTM_HIDDEN_DIM: Final = 128
DEFAULT_LSTM_LAYERS: Final = 1
DEFAULT_NUM_ENVS: Final = 4
DEFAULT_EPISODE_LENGTH: Final = 25

TRAINING_EPOCHS: Final = 2
"""Epochs a seed learns in isolation before its gate opens."""
BLENDING_EPOCHS: Final = 3
"""Epochs over which alpha rises to 1, pauses aside."""
