"""Running means of gradients, and how far the latest is from them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from esper.leyline import DIVISION_GUARD, GRADIENT_DRIFT

_WARM_UP = 3
"""Samples before a deviation means anything."""


@dataclass(frozen=True, slots=True)
class GradientDrift:
    """How one sample compares with those before it."""

    norm: float
    """Relative deviation of the norm from its running mean; 0 while that is still warming up."""
    health: float
    """The same for the health."""
    drifted: bool
    finite: bool
    """False for a sample that was not a number; it was left out of the means."""

    @property
    def indicator(self) -> float:
        """What a detector compares with its limit; infinite for a sample that is not a number."""
        return self.norm if self.finite else math.inf


@dataclass(slots=True)
class GradientEMATracker:
    """Exponential running means of gradient norm and health; the first sample starts them."""

    decay: float = 0.9
    limit: float = GRADIENT_DRIFT
    norm: float | None = None
    health: float | None = None
    samples: int = 0

    def update(self, norm: float, health: float = 1.0) -> GradientDrift:
        """Compare a sample with the means, then take it in; one that is not finite changes nothing."""
        if not (math.isfinite(norm) and math.isfinite(health)):
            return GradientDrift(math.nan, math.nan, drifted=True, finite=False)
        if self.norm is None or self.health is None:
            self.norm, self.health = norm, health
        deviations = _relative(norm, self.norm), _relative(health, self.health)
        warm = self.samples >= _WARM_UP
        self.norm += (1 - self.decay) * (norm - self.norm)
        self.health += (1 - self.decay) * (health - self.health)
        self.samples += 1
        if not warm:
            return GradientDrift(0.0, 0.0, drifted=False, finite=True)
        return GradientDrift(*deviations, drifted=deviations[0] > self.limit, finite=True)

    def state_dict(self) -> dict[str, Any]:
        """As plain types."""
        return {"norm": self.norm, "health": self.health, "samples": self.samples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.norm, self.health, self.samples = state["norm"], state["health"], state["samples"]


def _relative(value: float, mean: float) -> float:
    return abs(value - mean) / max(abs(mean), DIVISION_GUARD)
