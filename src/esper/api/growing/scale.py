"""What a user's measure is worth: any number that `evaluate` returns, in the units of controllers and of rent.

A score in [0, 1] is used as it is. Of everything else only differences are known, so a unit has to be found for them:
of a loss its present value, of any other metric the way it has come. Both are local: neither the untrained network
nor the units of the measure matter, and a metric may be shifted by any constant.
"""

import math
import statistics
import warnings
from collections.abc import Mapping
from typing import Any, Literal, get_args

from esper.leyline import InputError, unknown_name

Measure = Literal["score", "loss"]
"""What `evaluate` returns: a score in [0, 1], higher is better, or a loss above 0, lower is better."""

Kind = Literal["score", "loss", "higher is better", "lower is better"]
"""The two measures, and what is known of any other metric."""

_ROUNDING = 1e-6
"""A mean of ones may come out as a little more than 1."""
_SMALLEST_SHARE = 1e-12
"""Losses below this share of the first one are as good as 0."""
_WORST_SCORE = -1.0
"""Where training has gone far back, how far does not matter any more."""
_ANY_METRIC = "higher_is_better=True or False is for metrics that may take any value"


def make_scale(measure: Measure | None, higher_is_better: bool | None) -> "Scale":
    if higher_is_better is None:
        if measure is not None and measure not in get_args(Measure):
            raise unknown_name("measure", measure, get_args(Measure))
        return LossScale() if measure == "loss" else Scale()
    if measure is not None:
        raise InputError(f"measure={measure!r} tells which way is better; leave out one of the two: {_ANY_METRIC}")
    if not isinstance(higher_is_better, bool):
        raise InputError(f"higher_is_better must be True or False; got {higher_is_better!r}")
    return MetricScale(higher_is_better)


class Scale:
    """A score in [0, 1], which needs no other scale."""

    kind: Kind = "score"

    def check(self, value: float) -> None:
        """Raise if this finite value cannot be what `evaluate` was said to return."""
        if not -_ROUNDING <= value <= 1 + _ROUNDING:
            raise InputError(
                f"evaluate returned {value:g}; a score is between 0 and 1 (divide percent by 100). "
                f"measure='loss' is for losses above 0; {_ANY_METRIC}"
            )

    def begin(self, value: float) -> None:
        """Start with the value of the untrained network."""

    def score(self, value: float) -> float:
        """Quality of a network that measures `value`, in about [0, 1] and comparable over epochs."""
        return value

    def gain(self, value: float, without: float) -> float:
        """What a seed brings, in [-1, 1], if the network measures `value` with it and `without` without it."""
        return value - without

    def keep(self, value: float) -> None:
        """Remember the value of a good epoch."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Remember it again."""


class MetricScale(Scale):
    """Any metric with a direction. A difference counts relative to the way that the metric has come.

    That way leads from the lower quartile of all values so far to the best one, so that the untrained network and the
    first leaps do not count for long. The score is how much training has gained since its first epoch:
    `1 - exp(-gains)`, which is 0 then, and on the way to 1 later.
    """

    def __init__(self, higher_is_better: bool) -> None:
        self.kind = "higher is better" if higher_is_better else "lower is better"
        self._sign = 1.0 if higher_is_better else -1.0
        self._values: list[float] = []
        """Of the untrained network, then of each good epoch."""
        self._progress = 0.0
        """Sum of all gains since the first good epoch."""

    def check(self, value: float) -> None:
        pass  # any number is fine

    def begin(self, value: float) -> None:
        self._values = [value]

    def score(self, value: float) -> float:
        return 1 - math.exp(-max(self._progress_at(value), -math.log(1 - _WORST_SCORE)))

    def gain(self, value: float, without: float) -> float:
        return _cut(self._difference(value, without))

    def keep(self, value: float) -> None:
        self._progress = self._progress_at(value)
        self._values.append(value)

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self._values), "progress": self._progress}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._values, self._progress = [float(value) for value in state["values"]], float(state["progress"])

    def _progress_at(self, value: float) -> float:
        started = len(self._values) > 1
        return self._progress + self._difference(value, self._values[-1]) if started else 0.0

    def _difference(self, value: float, other: float) -> float:
        values = [self._sign * one for one in (*self._values, value)]
        way = max(values) - statistics.quantiles(values, n=4, method="inclusive")[0]
        difference = self._sign * (value - other)
        # A metric that has not moved yet tells only which of two values is the better one.
        return _cut(difference / way) if way > 0 else math.copysign(float(difference != 0), difference)


class LossScale(MetricScale):
    """A loss that cannot fall below 0. A difference counts relative to the present loss: 5 % less is 0.05."""

    def __init__(self) -> None:
        super().__init__(higher_is_better=False)
        self.kind = "loss"

    def begin(self, value: float) -> None:
        if value <= 0:
            raise InputError(
                f"evaluate returned a loss of {value:g}; with measure='loss' it has to start above 0. {_ANY_METRIC}"
            )
        super().begin(value)

    def keep(self, value: float) -> None:
        """Remember the loss of a good epoch; say so if it is one that has no ratios."""
        if value < 0 <= min(self._values):
            warnings.warn(
                f"evaluate returned a loss of {value:g}; from now on what seeds bring is told relative to the way that "
                "it has come, as with higher_is_better=False, which is for losses that may fall below 0",
                stacklevel=4,
            )
        super().keep(value)

    def _difference(self, value: float, other: float) -> float:
        if min(value, other, *self._values) < 0:
            return super()._difference(value, other)
        floor = _SMALLEST_SHARE * self._values[0]
        return math.log(max(other, floor) / max(value, floor))


def _cut(value: float) -> float:
    return max(-1.0, min(value, 1.0))
