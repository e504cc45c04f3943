"""The terms of the loss as pure functions, and the statistics of one minibatch.

Shapes: log_probs, entropies and `active` are `[G, L, H]`; values, returns, advantages and `valid` are `[G, L]`. Means
are masked: each head averages over the steps where it mattered, so rare heads are not diluted and padding is nothing.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.leyline import ENTROPY_FLOOR_SCALE_CAP
from esper.simic.config.learner import ValueLossType
from esper.simic.control.action_spec import ActionSpec


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over all but the last dimension of `x [..., H]` where `mask` is True; 0 where it never is."""
    dims = tuple(range(x.dim() - 1))
    return torch.where(mask, x, 0.0).sum(dims) / mask.sum(dims).clamp(min=1)


def log_ratios(log_probs: Tensor, old_log_probs: Tensor, active: Tensor) -> Tensor:
    """Log of the probability ratio, exactly 0 where a head does not count."""
    return torch.where(active, log_probs - old_log_probs, 0.0)


def compute_per_head_advantages(advantages: Tensor, active: Tensor) -> Tensor:
    """`advantages [...]` for every head that counts and 0 for the others: `[..., H]`."""
    return torch.where(active, advantages.unsqueeze(-1), 0.0)


def policy_loss(log_ratio: Tensor, advantages: Tensor, active: Tensor, clip_ratio: float) -> tuple[Tensor, Tensor]:
    """Clipped surrogate, summed over heads, and the loss of each head `[H]`."""
    # The lower of plain and clipped: a ratio beyond the clip earns nothing more.
    ratio = log_ratio.exp()
    per_head = compute_per_head_advantages(advantages, active)
    surrogate = torch.minimum(ratio * per_head, ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio) * per_head)
    head_losses = -masked_mean(surrogate, active)
    return head_losses.sum(), head_losses


def value_loss(
    values: Tensor,
    targets: Tensor,
    valid: Tensor,
    *,
    kind: ValueLossType = "mse",
    huber_delta: float = 1.0,
    reference: Tensor | None = None,
    clip: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Half the squared error (or Huber's), and the error of each step before the mean.

    With `reference` the pessimistic maximum of the plain error and that of a prediction kept within ±`clip` of it.
    """
    errors = _value_errors(values, targets, kind, huber_delta)
    if reference is not None:
        kept = reference + (values - reference).clamp(-clip, clip)
        errors = torch.maximum(errors, _value_errors(kept, targets, kind, huber_delta))
    return masked_mean(errors.unsqueeze(-1), valid.unsqueeze(-1)).squeeze(-1), errors


def _value_errors(values: Tensor, targets: Tensor, kind: ValueLossType, huber_delta: float) -> Tensor:
    if kind == "huber":
        return F.huber_loss(values, targets, delta=huber_delta, reduction="none")
    return 0.5 * (values - targets).square()


def entropy_bonus(entropies: Tensor, active: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over heads of coefficient `[H]` times mean entropy, and those means `[H]`."""
    means = masked_mean(entropies, active)
    return (coefficients * means).sum(), means


class RatioStatistics(NamedTuple):
    """How far the policy has moved, on one minibatch."""

    approx_kl: Tensor
    head_kls: Tensor
    clip_fraction: Tensor
    ratio_max: Tensor
    ratio_min: Tensor
    all_finite: Tensor
    head_clip_fractions: Tensor
    head_ratio_max: Tensor
    head_ratio_min: Tensor


@torch.inference_mode()
def ratio_statistics(log_ratio: Tensor, active: Tensor, valid: Tensor, clip_ratio: float) -> RatioStatistics:
    """KL estimates, share of clipped ratios, and their extremes, `[]` or per head `[H]`. Nothing enters the loss.

    Per step and head k = (r - 1) - ln r, which is never negative and whose mean is the KL. The joint KL sums over
    heads, by the chain rule of a factored policy, and averages over steps; heads that did not matter add nothing.
    """
    ratio = log_ratio.exp()
    kl = log_ratio.expm1() - log_ratio  # unlike (ratio - 1), expm1 loses nothing when the ratio is close to 1
    steps = valid.sum().clamp(min=1)
    clipped = active & ((ratio - 1.0).abs() > clip_ratio)
    return RatioStatistics(
        torch.where(active, kl, 0.0).sum() / steps,
        masked_mean(kl, active),
        clipped.sum() / active.sum().clamp(min=1),
        ratio.max(),
        ratio.min(),
        ratio.isfinite().all(),
        masked_mean(clipped.to(ratio.dtype), active),
        ratio.flatten(0, -2).amax(0),
        ratio.flatten(0, -2).amin(0),
    )


@dataclass(frozen=True, slots=True)
class EntropySchedule:
    """How strongly exploration is paid for."""

    initial: float
    minimum: float
    adaptive_floor: bool = False
    decay_steps: int | None = None
    """Steps over which the coefficient falls to its floor; None: it stays."""

    def floor(self, mask: Tensor | None = None) -> float:
        """`minimum`, raised where a mask leaves few of the actions, by ln(all) / ln(valid) but at most threefold.

        The entropies themselves are already normalised by the valid actions. The adaptive floor comes on top: it
        keeps heads exploring that rarely have a choice.
        """
        if mask is None or not self.adaptive_floor:
            return self.minimum
        total, valid = mask.numel(), int(mask.sum())
        if valid <= 1 or valid == total:
            return self.minimum
        return self.minimum * min(math.log(total) / math.log(valid), ENTROPY_FLOOR_SCALE_CAP)

    def coefficient(self, steps: int, mask: Tensor | None = None) -> float:
        """The scalar base after `steps`; per-head factors multiply it. 0 to begin with means no bonus at all."""
        if self.initial == 0.0:
            return 0.0
        floor = self.floor(mask)
        if self.decay_steps is None:
            return max(self.initial, floor) if self.adaptive_floor else self.initial
        progress = min(1.0, steps / self.decay_steps) if self.decay_steps > 0 else 1.0
        return max(floor, self.initial + progress * (floor - self.initial))


def fewest_valid(spec: ActionSpec, selected: Tensor, active: Tensor) -> dict[str, Tensor | None]:
    """Per head a mask as restrictive as the tightest choice in the batch, or None if it never had a choice.

    `selected [..., H, K]`, `active [..., H]`; one host transfer for all heads.
    """
    valid = selected.sum(-1)
    counts = torch.where(active & (valid > 1), valid, spec.width + 1).flatten(0, -2).amin(0).tolist()
    return {
        head.name: torch.arange(head.size) < count if count <= head.size else None
        for head, count in zip(spec.heads, counts, strict=True)
    }
