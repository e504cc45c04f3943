"""Norms and health of gradients: multi-tensor calls, tensors until asked for, then one transfer."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self, TypedDict

import torch
from torch import Tensor, nn

from esper.kasmina.torch_private import tensor_norms
from esper.leyline import (
    POLICY_EXPLODING_FACTOR,
    POLICY_VANISHING_FACTOR,
    SEED_EXPLODING_GRADIENT,
    SEED_VANISHING_GRADIENT,
)


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
        return torch.stack(
            [
                norms < self.vanishing_threshold,
                norms > self.exploding_threshold,
                norms.isnan(),
                norms.isinf(),
                norms == 0.0,
            ]
        ).sum(1)


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
