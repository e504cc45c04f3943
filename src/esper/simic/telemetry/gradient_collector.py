"""The health of an update: gradients, their drift over rounds, and the policy's memory."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self, TypedDict

import torch
from torch import Tensor, nn

from esper.kasmina.torch_private import tensor_norms
from esper.leyline import (
    DIVISION_GUARD,
    GRADIENT_DRIFT,
    SEED_EXPLODING_GRADIENT,
    SEED_VANISHING_GRADIENT,
)
from esper.simic.agent.types import Hidden

LSTM_MAGNITUDE = 100.0
"""A cell of the policy's memory beyond this no longer forgets. In an episode of 25 steps one that counts reaches 25."""
POLICY_EXPLODING_FACTOR = 10.0
"""A gradient of the policy above so many times its clipping limit is about to be mostly cut away."""
POLICY_VANISHING_FACTOR = 1e-5
"""A gradient of the policy below so many times its clipping limit teaches nothing."""


@dataclass(frozen=True, slots=True)
class LSTMHealth:
    """LSTM states h and c of any shape. Numbers leave out what is not finite, so that the flags alone tell of it."""

    h_rms: float
    c_rms: float
    h_max: float
    """Largest magnitude."""
    c_max: float
    h_mean: float
    h_std: float
    has_nan: bool
    has_inf: bool

    def is_healthy(self, limit: float = LSTM_MAGNITUDE) -> bool:
        """Finite, and no magnitude above `limit`."""
        return not (self.has_nan or self.has_inf) and max(self.h_max, self.c_max) <= limit

    def to_dict(self) -> dict[str, float]:
        """As plain numbers."""
        return {name: float(value) for name, value in asdict(self).items()}


@torch.no_grad()
def compute_lstm_health(hidden: Hidden | None) -> LSTMHealth | None:
    """The health of `hidden` (h and c), fetched from the device in one transfer; None if there is none."""
    if hidden is None:
        return None
    h, c = (state.float() for state in hidden)
    finite_h, finite_c = (state.nan_to_num(0.0, 0.0, 0.0) for state in (h, c))
    numbers = [
        finite_h.square().mean().sqrt(),
        finite_c.square().mean().sqrt(),
        finite_h.abs().amax(),
        finite_c.abs().amax(),
        finite_h.mean(),
        finite_h.std(correction=0),
        _flag(h.isnan(), c.isnan()),
        _flag(h.isinf(), c.isinf()),
    ]
    h_rms, c_rms, h_max, c_max, h_mean, h_std, has_nan, has_inf = torch.stack(numbers).tolist()
    return LSTMHealth(h_rms, c_rms, h_max, c_max, h_mean, h_std, bool(has_nan), bool(has_inf))


def _flag(first: Tensor, second: Tensor) -> Tensor:
    return (first.any() | second.any()).float()


class GradientHealth(TypedDict):
    """What the gradients of some parameters look like."""

    gradient_norm: float
    """Of all together."""
    gradient_health: float
    """Share of the tensors whose gradient neither vanishes nor explodes; 0 if the norm is not finite."""
    has_vanishing: bool
    has_exploding: bool
    num_gradients: int
    num_vanishing: int
    num_exploding: int
    nan_gradients: int
    """Tensors whose norm is NaN."""
    inf_gradients: int
    zero_gradients: int


@dataclass(frozen=True, slots=True)
class AsyncGradientStats:
    """The same before it is fetched: nothing has waited for the device."""

    empty: bool
    num_gradients: int
    total_square: Tensor | None = None
    """`[]`, in double precision, so that squares of half-precision norms do not overflow."""
    norms: Tensor | None = None
    """`[G]`, one per tensor with a gradient."""
    counts: Tensor | None = None
    """`[5]`: vanishing, exploding, NaN, infinite, zero."""


@dataclass(frozen=True, slots=True)
class SeedGradientCollector:
    """Judges gradients by two thresholds; the defaults fit seeds and hosts."""

    vanishing_threshold: float = SEED_VANISHING_GRADIENT
    exploding_threshold: float = SEED_EXPLODING_GRADIENT

    @classmethod
    def for_policy(cls, max_grad_norm: float) -> Self:
        """Thresholds for a policy whose gradients are clipped to `max_grad_norm`."""
        return cls(POLICY_VANISHING_FACTOR * max_grad_norm, POLICY_EXPLODING_FACTOR * max_grad_norm)

    def collect(self, parameters: Iterable[nn.Parameter]) -> GradientHealth:
        """The health of the gradients of `parameters`, now."""
        return materialize_grad_stats(self.collect_async(parameters))

    @torch.no_grad()
    def collect_async(self, parameters: Iterable[nn.Parameter]) -> AsyncGradientStats:
        """The same as tensors on the device, to be fetched later with `materialize_grad_stats`."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not gradients:
            return AsyncGradientStats(empty=True, num_gradients=0)
        norms = _norms(gradients)
        return AsyncGradientStats(False, len(gradients), norms.square().sum(), norms, self._counts(norms))

    def _counts(self, norms: Tensor) -> Tensor:
        vanishing, exploding = norms < self.vanishing_threshold, norms > self.exploding_threshold
        return torch.stack([vanishing, exploding, norms.isnan(), norms.isinf(), norms == 0.0]).sum(1)


def _norms(gradients: list[Tensor]) -> Tensor:
    """`[G]` in double precision, on the device of the first: one multi-tensor call per device and type."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, gradient in enumerate(gradients):
        groups.setdefault((gradient.device, gradient.dtype), []).append(index)
    first = gradients[0].device
    parts, order = [], []
    for members in groups.values():
        # Squares of half-precision numbers overflow inside the norm too.
        chosen = [gradients[index] for index in members]
        wide = [g if g.dtype in (torch.float32, torch.float64) else g.float() for g in chosen]
        parts.append(torch.stack(tensor_norms(wide)).to(first, torch.float64, non_blocking=True))
        order += members
    joined = torch.cat(parts)
    return joined if len(parts) == 1 else joined[torch.tensor(order, device=first).argsort()]


def materialize_grad_stats(stats: AsyncGradientStats) -> GradientHealth:
    """Fetch what was collected, in one transfer."""
    if stats.total_square is None or stats.counts is None:
        numbers = [0.0] * 6
    else:
        numbers = torch.cat([stats.total_square.sqrt()[None], stats.counts.double()]).tolist()
    norm, vanishing, exploding, nan, infinite, zero = numbers
    finite = nan == infinite == 0
    unhealthy = (vanishing + exploding) / max(1, stats.num_gradients)
    return GradientHealth(
        gradient_norm=norm,
        gradient_health=min(1.0, max(0.0, 1.0 - unhealthy)) if finite else 0.0,
        has_vanishing=vanishing > 0,
        has_exploding=exploding > 0,
        num_gradients=stats.num_gradients,
        num_vanishing=int(vanishing),
        num_exploding=int(exploding),
        nan_gradients=int(nan),
        inf_gradients=int(infinite),
        zero_gradients=int(zero),
    )


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
