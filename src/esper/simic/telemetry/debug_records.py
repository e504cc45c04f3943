"""Records for someone who looks for the cause of an anomaly. They cost transfers, and are made on demand only."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from esper.kasmina.torch_private import tensor_norms
from esper.leyline import MAX_RATIO, MIN_RATIO
from esper.simic.telemetry.gradient_collector import GradientHealth

_WORST = 5


@dataclass(frozen=True, slots=True)
class RatioExplosionDiagnostic:
    """The steps whose probability ratios are farthest out of bounds, the worst first."""

    count: int
    """Steps out of bounds."""
    indices: list[int]
    """Places of the worst in the flat batch."""
    ratios: list[float]
    log_prob_gaps: list[float]
    """New minus old log-probability."""
    actions: list[int]
    """Of the worst."""
    action_counts: dict[int, int]
    """How often each action is out of bounds."""

    @classmethod
    @torch.no_grad()
    def from_batch(
        cls,
        ratios: Tensor,
        old_log_probs: Tensor,
        new_log_probs: Tensor,
        actions: Tensor,
        max_ratio: float = MAX_RATIO,
        min_ratio: float = MIN_RATIO,
        worst: int = _WORST,
    ) -> Self:
        """From tensors of one shape; what is not finite counts as out of bounds, and as the worst there is."""
        ratio, taken = ratios.flatten(), actions.flatten()
        gaps = (new_log_probs - old_log_probs).flatten()
        out = ~((ratio <= max_ratio) & (ratio >= min_ratio))
        places = out.nonzero().flatten()
        size = gaps[places].abs().nan_to_num(torch.inf)
        chosen = places[size.argsort(descending=True, stable=True)[:worst]]
        kinds, counts = taken[places].unique(return_counts=True)
        return cls(
            len(places),
            chosen.tolist(),
            ratio[chosen].tolist(),
            gaps[chosen].tolist(),
            taken[chosen].tolist(),
            dict(zip(kinds.tolist(), counts.tolist(), strict=True)),
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class NumericalStabilityReport:
    """Weights, gradients, losses and entropies at one moment, gradients before clipping."""

    weight_norm: float
    weight_max: float
    """Largest magnitude."""
    nonfinite_weights: int
    gradient: GradientHealth
    unit_norms: Mapping[str, float]
    """Norm per part of the network, before clipping."""
    losses: Mapping[str, float]
    entropies: Mapping[str, float]
    """Normalised entropy per head, mean over the steps where it mattered."""

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        parameters: Iterable[nn.Parameter],
        gradient: GradientHealth,
        unit_norms: Mapping[str, float],
        losses: Mapping[str, float],
        entropies: Mapping[str, float],
    ) -> Self:
        """From the parameters as they are, and what was collected of their gradients."""
        weights = [parameter.detach().float() for parameter in parameters]
        norms = torch.stack(tensor_norms(weights))
        largest = torch.stack([weight.abs().amax() for weight in weights]).amax()
        bad = torch.stack([(~weight.isfinite()).sum() for weight in weights]).sum()
        norm, size, count = torch.stack([norms.square().sum().sqrt(), largest, bad.float()]).tolist()
        return cls(norm, size, int(count), gradient, unit_norms, losses, entropies)

    def to_dict(self) -> dict[str, Any]:
        """As plain types."""
        return asdict(self)
