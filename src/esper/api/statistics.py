"""Means with intervals, for numbers that come from a few paired seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

_RESAMPLES = 10_000
_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds with its 95 % bootstrap interval (percentiles)."""

    mean: float
    low: float
    high: float
    per_seed: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Resample `values` with a fixed seed, so that the same numbers give the same interval."""
        data = np.asarray(values, dtype=np.float64)
        rng = np.random.default_rng(0)
        means = rng.choice(data, size=(_RESAMPLES, len(data))).mean(axis=1)
        low, high = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
        return cls(float(data.mean()), float(low), float(high), tuple(data.tolist()))

    @property
    def interval(self) -> tuple[float, float, float]:
        """Mean, lower and upper end."""
        return self.mean, self.low, self.high

    def to_dict(self) -> dict[str, object]:
        return {"mean": self.mean, "low": self.low, "high": self.high, "per_seed": list(self.per_seed)}

    def show(self) -> str:
        """In percent, with the interval in brackets."""
        return f"{100 * self.mean:.1f} ({100 * self.low:.1f} to {100 * self.high:.1f})"
