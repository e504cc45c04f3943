"""What an update reports: numbers of each minibatch, fetched from the device in one go, and their summary."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from esper.leyline import DIVISION_GUARD
from esper.simic.agent.network import NetworkOutput
from esper.simic.agent.optimization import VALUE_UNIT, GradientNorms, RatioStatistics, masked_mean
from esper.simic.agent.rollout_buffer import SequenceBatch
from esper.simic.agent.types import EpochMetrics, GradientStats, PPOUpdateMetrics, ValueDiagnostics
from esper.simic.control.action_masks import ActionSpec, MaskedCategorical, joint_entropy, joint_kl

_WIDE = 0.98
"""How much of a round's ratios lies below its high one, and above its low one."""


class MinibatchReport(NamedTuple):
    """One minibatch, on the host."""

    scalars: dict[str, float]
    entropies: list[float]
    head_kls: list[float]
    head_clip_fractions: list[float]
    head_ratio_max: list[float]
    head_ratio_min: list[float]
    grad_norms: list[float]
    """Per head, then value, then trunk."""

    @property
    def ratios_finite(self) -> bool:
        """Whether all probability ratios were finite."""
        return self.scalars["ratios_finite"] == 1.0

    @property
    def usable(self) -> bool:
        """Whether a step on these gradients leaves the parameters finite."""
        losses = (self.scalars["total_loss"], self.scalars["total_grad_norm"])
        return self.ratios_finite and all(math.isfinite(number) for number in losses)


@torch.inference_mode()
def fetch_report(
    policy: Tensor, value: Tensor, total: Tensor, entropies: Tensor, ratios: RatioStatistics, norms: GradientNorms
) -> MinibatchReport:
    """Everything that the host wants to know about a minibatch, in one transfer."""
    scalars = {
        "policy_loss": policy,
        "value_loss": value,
        "total_loss": total,
        "approx_kl": ratios.approx_kl,
        "clip_fraction": ratios.clip_fraction,
        "ratio_max": ratios.ratio_max,
        "ratio_min": ratios.ratio_min,
        "ratios_finite": ratios.all_finite.float(),
        "total_grad_norm": norms.total,
        "post_clip_grad_norm": norms.post_clip,
    }
    # All numbers in one tensor, so that the device is waited for once.
    per_head = (ratios.head_kls, ratios.head_clip_fractions, ratios.head_ratio_max, ratios.head_ratio_min)
    parts = [torch.stack(list(scalars.values())), entropies, *per_head, norms.units]
    numbers = iter(torch.cat(parts).tolist())
    first, *lists = ([next(numbers) for _ in part] for part in parts)
    return MinibatchReport(dict(zip(scalars, first, strict=True)), *lists)


@torch.no_grad()
def value_diagnostics(values: Tensor, returns: Tensor, advantages: Tensor) -> ValueDiagnostics:
    """How good the value function was, from flat `[M]` tensors in any precision, in one transfer."""
    values, returns, advantages = values.float(), returns.float(), advantages.float()
    numbers = {
        "value_pred_mean": values.mean(),
        "value_pred_std": values.std(correction=0),
        "return_mean": returns.mean(),
        "return_std": returns.std(correction=0),
        "return_min": returns.min(),
        "return_max": returns.max(),
        "value_mse_before": (returns - values).square().mean(),
        "advantage_mean_prenorm": advantages.mean(),
        "advantage_std_prenorm": advantages.std(correction=0),
        "advantage_min_prenorm": advantages.min(),
        "advantage_max_prenorm": advantages.max(),
        "advantage_positive_share": (advantages > 0).float().mean(),
        "explained_variance": _explained_variance(values, returns),
    }
    fetched = torch.stack(list(numbers.values())).tolist()
    return cast("ValueDiagnostics", dict(zip(numbers, fetched, strict=True)))


def _explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """Share of the returns' variance that the values foresee; 0 where returns do not differ."""
    # correction 0, so that a single step gives a spread of 0 and not NaN
    spread = returns.var(correction=0)
    missed = (returns - values).var(correction=0) / spread.clamp(min=DIVISION_GUARD)
    return torch.where(spread > DIVISION_GUARD, 1.0 - missed, 0.0)


@torch.no_grad()
def round_statistics(
    spec: ActionSpec, batch: SequenceBatch, before: NetworkOutput, after: NetworkOutput, scale: Tensor
) -> dict[str, Any]:
    """How the policy and the values of a whole round changed in an update, in one transfer."""
    real = batch.valid
    masks = {name: mask[real] for name, mask in batch.masks.items()}
    # A head had a choice where it mattered and masks left it two options.
    choices = batch.active & (batch.selected.sum(-1) > 1)
    old, new = (MaskedCategorical(output.logits, batch.selected, validate=False) for output in (before, after))
    entropies = old.normalized_entropy()
    # How far the probability of each taken action has moved.
    change = (new.log_prob(batch.actions) - old.log_prob(batch.actions))[batch.active]
    moved = change.float().exp().nan_to_num(torch.inf)
    values, returns = (after.values * scale)[real].float(), batch.returns[real].float()
    low, high = moved.quantile(moved.new_tensor([1 - _WIDE, _WIDE])).unbind()
    scalars = {
        "return_scale": scale,
        "round_ratio_low": low,
        "round_ratio_high": high,
        "joint_entropy": joint_entropy(spec, before.logits[real], masks).mean(),
        "joint_kl": joint_kl(spec, before.logits[real], after.logits[real], masks).mean(),
        "value_mse_after": (returns - values).square().mean(),
        "explained_variance_after": _explained_variance(values, returns),
    }
    parts = [torch.stack(list(scalars.values())), masked_mean(entropies, choices), choices.flatten(0, -2).sum(0)]
    numbers = iter(torch.cat(parts).tolist())
    fetched = dict(zip(scalars, numbers, strict=False))
    head_entropies = {name: next(numbers) for name in spec.names}
    return fetched | {
        "head_choice_entropies": head_entropies,
        "head_choices": {name: int(next(numbers)) for name in spec.names},
    }


@dataclass(slots=True)
class UpdateLog:
    """The minibatches of one update, epoch by epoch."""

    spec: ActionSpec
    epochs: list[list[MinibatchReport]] = field(default_factory=list)
    """Per epoch, the minibatches whose step was taken, or that ended the update."""
    optimizer_steps: int = 0
    skipped_steps: int = 0
    early_stopped: bool = False
    ratio_issue: bool = False
    ratio_kinds: dict[str, bool] = field(default_factory=dict)
    """`ratio_has_nan` and `ratio_has_inf`, where someone asked for them."""

    def _scalar(self, name: str) -> list[float]:
        """The mean of a scalar over the minibatches of each epoch."""
        return [_mean([report.scalars[name] for report in epoch]) for epoch in self.epochs if epoch]

    def _by_head(
        self,
        pick: Literal["head_clip_fractions", "head_ratio_max", "head_ratio_min"],
        reduce: Callable[[list[float]], float],
        default: float,
    ) -> dict[str, float]:
        """Per head one number over all minibatches."""
        rows = [getattr(report, pick) for epoch in self.epochs for report in epoch]
        return {name: reduce([row[i] for row in rows]) if rows else default for i, name in enumerate(self.spec.names)}

    def _by_name(self, pick: Literal["entropies", "head_kls", "grad_norms"]) -> dict[str, list[float]]:
        """Per head (or unit) the mean of a list over the minibatches of each epoch."""
        rows = [[getattr(report, pick) for report in epoch] for epoch in self.epochs if epoch]
        names = (*self.spec.names, VALUE_UNIT) if pick == "grad_norms" else self.spec.names
        return {name: [_mean([row[i] for row in epoch]) for epoch in rows] for i, name in enumerate(names)}

    def epoch_metrics(self) -> EpochMetrics:
        """Losses, KL and clipping of each epoch."""
        return EpochMetrics(
            policy_loss=self._scalar("policy_loss"),
            value_loss=self._scalar("value_loss"),
            entropy=[sum(heads) for heads in zip(*self._by_name("entropies").values(), strict=True)],
            total_loss=self._scalar("total_loss"),
            approx_kl=self._scalar("approx_kl"),
            clip_fraction=self._scalar("clip_fraction"),
        )

    def _gradient_stats(self, reports: list[MinibatchReport]) -> GradientStats | None:
        if not reports:
            return None
        norms = reports[-1].grad_norms
        return GradientStats(grad_norm=reports[-1].scalars["total_grad_norm"], max_grad=max(norms), min_grad=min(norms))

    def summary(self, diagnostics: ValueDiagnostics, **others: Any) -> PPOUpdateMetrics:
        """The public metrics; `others` are those that are not made of minibatches."""
        epochs = self.epoch_metrics()
        reports = [report for epoch in self.epochs for report in epoch]
        metrics = {
            "empty": False,
            **{name: _mean(numbers) for name, numbers in cast("dict[str, list[float]]", epochs).items()},
            "approx_kl": _last(epochs["approx_kl"]),
            "ratio_max": max((report.scalars["ratio_max"] for report in reports), default=1.0),
            "ratio_min": min((report.scalars["ratio_min"] for report in reports), default=1.0),
            "head_entropies": self._by_name("entropies"),
            "head_grad_norms": self._by_name("grad_norms"),
            "head_kls": {name: _last(kls) for name, kls in self._by_name("head_kls").items()},
            "head_clip_fractions": self._by_head("head_clip_fractions", _mean, 0.0),
            "head_ratio_max": self._by_head("head_ratio_max", max, 1.0),
            "head_ratio_min": self._by_head("head_ratio_min", min, 1.0),
            "total_grad_norm": _mean([report.scalars["total_grad_norm"] for report in reports]),
            "post_clip_grad_norm": _mean([report.scalars["post_clip_grad_norm"] for report in reports]),
            "gradient_stats": self._gradient_stats(reports),
            "epochs_run": len(self.epochs),
            "optimizer_steps": self.optimizer_steps,
            "skipped_steps": self.skipped_steps,
            "early_stopped": self.early_stopped,
            "has_numerical_issue": self.skipped_steps > 0,
            "ratio_has_numerical_issue": self.ratio_issue,
        }
        return cast("PPOUpdateMetrics", {**metrics, **diagnostics, **self.ratio_kinds, **others})


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def _last(numbers: list[float]) -> float:
    return numbers[-1] if numbers else 0.0


def empty_metrics(spec: ActionSpec, return_scale: float) -> PPOUpdateMetrics:
    """What an update without a single step reports."""
    nothing = cast("ValueDiagnostics", dict.fromkeys(ValueDiagnostics.__annotations__, 0.0))
    none_per_head = dict.fromkeys(spec.names, 0.0)
    metrics = UpdateLog(spec).summary(
        nothing,
        joint_entropy=0.0,
        joint_kl=0.0,
        value_mse_after=0.0,
        explained_variance_after=0.0,
        round_ratio_low=1.0,
        round_ratio_high=1.0,
        head_choices=dict.fromkeys(spec.names, 0),
        head_choice_entropies=none_per_head,
        entropy_coefs=none_per_head,
        mask_hit_rates=none_per_head,
        return_scale=return_scale,
    )
    metrics["empty"] = True
    return metrics
