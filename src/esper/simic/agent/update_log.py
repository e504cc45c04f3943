"""What an update reports: numbers of each minibatch, fetched from the device in one go, and their summary."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from esper.leyline import DIVISION_GUARD
from esper.simic.agent.network import NetworkOutput
from esper.simic.agent.optimization import TRUNK_UNIT, VALUE_UNIT, masked_mean
from esper.simic.agent.rollout_buffer import SequenceBatch
from esper.simic.agent.types import EpochMetrics, GradientStats, PPOUpdateMetrics, ValueDiagnostics
from esper.simic.control.action_masks import ActionSpec, MaskedCategorical, select_logits
from esper.simic.control.joint import joint_entropy, joint_kl

_WIDE = 0.98
"""How much of a round's ratios lies below its high one, and above its low one."""

Report = dict[str, float]
"""The numbers of one minibatch, on the host. Those of a head or of another part of the network go by `head_kls.op`."""


@torch.inference_mode()
def fetch_numbers(numbers: Mapping[str, Tensor], parts: Sequence[str] = ()) -> Report:
    """Tensors `[]` and `[n]` as numbers by name, in one transfer; those of `[n]` go by the first n of `parts`."""
    names = []
    for name, number in numbers.items():
        names += [f"{name}.{part}" for part in parts[: len(number)]] if number.dim() else [name]
    return dict(zip(names, torch.cat([number.reshape(-1) for number in numbers.values()]).tolist(), strict=True))


def is_usable(report: Report) -> bool:
    """Whether a step on the gradients of this minibatch leaves the parameters finite."""
    return bool(report["ratios_finite"]) and math.isfinite(report["total_loss"] + report["total_grad_norm"])


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
    return cast("ValueDiagnostics", fetch_numbers(numbers))


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
    old, new = (
        MaskedCategorical(select_logits(spec, output.logits, batch.actions), batch.selected, validate=False)
        for output in (before, after)
    )
    # How far the probability of each taken action has moved.
    change = (new.log_prob(batch.actions) - old.log_prob(batch.actions))[batch.active]
    moved = change.float().exp().nan_to_num(torch.inf)
    values, returns = (after.values * scale)[real].float(), batch.returns[real].float()
    low, high = moved.quantile(moved.new_tensor([1 - _WIDE, _WIDE])).unbind()
    numbers = {
        "return_scale": scale,
        "round_ratio_low": low,
        "round_ratio_high": high,
        "joint_entropy": joint_entropy(spec, before.logits[real], masks).mean(),
        "joint_kl": joint_kl(spec, before.logits[real], after.logits[real], masks).mean(),
        "value_mse_after": (returns - values).square().mean(),
        "explained_variance_after": _explained_variance(values, returns),
        "mask_hit_rates": mask_hit_rates(spec, batch.selected, batch.active),
        "head_choice_entropies": masked_mean(old.normalized_entropy(), choices),
        "head_choices": choices.flatten(0, -2).sum(0),
    }
    fetched: dict[str, Any] = fetch_numbers(numbers, spec.names)
    for metric in ("mask_hit_rates", "head_choice_entropies", "head_choices"):
        fetched[metric] = {name: fetched.pop(f"{metric}.{name}") for name in spec.names}
    fetched["head_choices"] = {name: int(count) for name, count in fetched["head_choices"].items()}
    return fetched


def mask_hit_rates(spec: ActionSpec, selected: Tensor, active: Tensor) -> Tensor:
    """`[H]`: share of the decisions of a head in which masking removed at least one option; 0 if it never decided.

    `selected [..., H, K]` as from `select_masks`, `active [..., H]`: the head decided.
    """
    sizes = torch.tensor([head.size for head in spec.heads], device=selected.device)
    hits = (active & (selected.sum(-1) < sizes)).flatten(0, -2).sum(0)
    return hits / active.flatten(0, -2).sum(0).clamp(min=1)


@dataclass(slots=True)
class UpdateLog:
    """The minibatches of one update, epoch by epoch."""

    spec: ActionSpec
    epochs: list[list[Report]] = field(default_factory=list)
    """Per epoch, the minibatches whose step was taken, or that ended the update."""
    optimizer_steps: int = 0
    skipped_steps: int = 0
    early_stopped: bool = False
    ratio_issue: bool = False
    ratio_kinds: dict[str, bool] = field(default_factory=dict)
    """`ratio_has_nan` and `ratio_has_inf`, where someone asked for them."""

    def _all(self, name: str) -> list[float]:
        """A number of every minibatch."""
        return [report[name] for epoch in self.epochs for report in epoch]

    def _means(self, name: str) -> list[float]:
        """The mean of a number over the minibatches of each epoch."""
        return [_mean([report[name] for report in epoch]) for epoch in self.epochs if epoch]

    def epoch_metrics(self) -> EpochMetrics:
        """Losses, KL and clipping of each epoch."""
        entropies = [self._means(f"entropies.{head}") for head in self.spec.names]
        return EpochMetrics(
            policy_loss=self._means("policy_loss"),
            value_loss=self._means("value_loss"),
            entropy=[sum(heads) for heads in zip(*entropies, strict=True)],
            total_loss=self._means("total_loss"),
            approx_kl=self._means("approx_kl"),
            clip_fraction=self._means("clip_fraction"),
        )

    def _gradient_stats(self) -> GradientStats | None:
        norms = [self._all(f"grad_norms.{unit}") for unit in (*self.spec.names, VALUE_UNIT, TRUNK_UNIT)]
        if not norms[0]:
            return None
        last = [of_unit[-1] for of_unit in norms]
        return GradientStats(grad_norm=self._all("total_grad_norm")[-1], max_grad=max(last), min_grad=min(last))

    def summary(self, diagnostics: ValueDiagnostics, **others: Any) -> PPOUpdateMetrics:
        """The public metrics; `others` are those that are not made of minibatches."""
        epochs, heads = self.epoch_metrics(), self.spec.names
        metrics = {
            "empty": False,
            **{name: _mean(numbers) for name, numbers in cast("dict[str, list[float]]", epochs).items()},
            "approx_kl": _last(epochs["approx_kl"]),
            "ratio_max": max(self._all("ratio_max"), default=1.0),
            "ratio_min": min(self._all("ratio_min"), default=1.0),
            "head_entropies": {head: self._means(f"entropies.{head}") for head in heads},
            "head_grad_norms": {unit: self._means(f"grad_norms.{unit}") for unit in (*heads, VALUE_UNIT)},
            "head_kls": {head: _last(self._means(f"head_kls.{head}")) for head in heads},
            "head_clip_fractions": {head: _mean(self._all(f"head_clip_fractions.{head}")) for head in heads},
            "head_ratio_max": {head: max(self._all(f"head_ratio_max.{head}"), default=1.0) for head in heads},
            "head_ratio_min": {head: min(self._all(f"head_ratio_min.{head}"), default=1.0) for head in heads},
            "total_grad_norm": _mean(self._all("total_grad_norm")),
            "post_clip_grad_norm": _mean(self._all("post_clip_grad_norm")),
            "gradient_stats": self._gradient_stats(),
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
    return UpdateLog(spec).summary(
        nothing,
        empty=True,
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
