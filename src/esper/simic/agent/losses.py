"""The terms of the loss as pure functions, and the statistics of one minibatch.

Shapes: log_probs, entropies and `active` are `[G, L, H]`; values, returns, advantages and `valid` are `[G, L]`. Means
are masked: each head averages over the steps where it mattered, so rare heads are not diluted and padding is nothing.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.simic.agent.advantages import compute_per_head_advantages

ValueLossType = Literal["mse", "huber"]
DEFAULT_HUBER_DELTA = 1.0


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over all but the last dimension of `x [..., H]` where `mask` is True; 0 where it never is."""
    dims = tuple(range(x.dim() - 1))
    return torch.where(mask, x, 0.0).sum(dims) / mask.sum(dims).clamp(min=1)


def log_ratios(log_probs: Tensor, old_log_probs: Tensor, active: Tensor) -> Tensor:
    """Log of the probability ratio, exactly 0 where a head does not count."""
    return torch.where(active, log_probs - old_log_probs, 0.0)


def policy_loss(log_ratio: Tensor, advantages: Tensor, active: Tensor, clip_ratio: float) -> tuple[Tensor, Tensor]:
    """Clipped surrogate, summed over heads, and the loss of each head `[H]`."""
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
    huber_delta: float = DEFAULT_HUBER_DELTA,
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
