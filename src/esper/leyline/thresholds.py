"""Limits that learning and its alarms compare against, each with one name and one value."""

from typing import Final

MAX_RATIO: Final = 5.0
"""A probability ratio above this is an explosion."""
MIN_RATIO: Final = 0.1
"""A probability ratio below this is a collapse."""
MIN_EXPLAINED_VARIANCE: Final = 0.1
ENTROPY_COLLAPSE: Final = 0.1
"""Normalised entropy below this means that a head no longer explores."""
KL_ANOMALY: Final = 0.1
"""An update that moved the policy by more than this many nats went too far."""
GRADIENT_DRIFT: Final = 5.0
"""A gradient norm that differs from its running mean by more than so many times that mean is an anomaly."""
KL_STOP_MULTIPLIER: Final = 1.5
"""An update stops once the approximate KL exceeds this many times its target."""
MASK_FILL: Final = -1e4
"""Logit of an invalid action: finite in half precision, unlike -inf or a float32 minimum."""
ADVANTAGE_STD_FLOOR: Final = 1e-3
"""Smallest divisor of advantage normalisation, so that noise is not blown up to unit size."""
LOW_ADVANTAGE_STD: Final = 0.1
"""Advantages spread less than this before normalisation deserve a warning."""
DIVISION_GUARD: Final = 1e-8
RECURRENT_EPOCHS_WARNING: Final = 2
"""More epochs than this on sequences that start from a stored state draw a warning."""
RECURRENT_EPOCHS_CAP: Final = 4
ENTROPY_FLOOR_SCALE_CAP: Final = 3.0
"""The most by which an adaptive entropy floor may grow as valid actions become few."""
SEED_VANISHING_GRADIENT: Final = 1e-7
"""A seed whose gradient norm is below this no longer learns."""
SEED_EXPLODING_GRADIENT: Final = 100.0
"""A seed whose gradient norm is above this is about to leave its host's scale."""
