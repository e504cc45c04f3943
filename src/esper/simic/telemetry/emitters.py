"""From the numbers of an update to its events."""

from collections.abc import Mapping, Sequence

from esper.nissa.events import AnomalyDetected, UpdateCompleted
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.types import PPOUpdateMetrics
from esper.simic.telemetry.anomaly_detector import ADVICE, Anomaly, SeedEpochs
from esper.simic.telemetry.gradient_collector import GradientHealth
from esper.simic.telemetry.gradient_ema import GradientDrift
from esper.simic.telemetry.lstm_health import LSTMHealth


def update_event(
    agent: PPOAgent,
    metrics: PPOUpdateMetrics,
    *,
    gradients: GradientHealth,
    drift: GradientDrift,
    lstm: LSTMHealth | None,
    seeds: SeedEpochs,
    collapsed: Sequence[str],
    level: str,
) -> UpdateCompleted:
    """Everything about one update, after it."""
    same = (
        "policy_loss", "value_loss", "total_loss", "entropy", "joint_entropy", "approx_kl", "joint_kl",
        "clip_fraction", "ratio_max", "ratio_min", "round_ratio_low", "round_ratio_high", "explained_variance",
        "total_grad_norm", "post_clip_grad_norm", "epochs_run", "optimizer_steps", "skipped_steps", "early_stopped",
        "return_scale",
    )  # fmt: skip
    numbers: Mapping[str, object] = dict(metrics)
    return UpdateCompleted(
        update=agent.updates,
        total_steps=agent.total_steps,
        learning_rate=agent.optimizer.param_groups[0]["lr"],
        value_grad_norm=_mean(metrics["head_grad_norms"]["value"]),
        values=_value_numbers(metrics),
        advantages=_advantage_numbers(metrics),
        heads={name: _head_numbers(metrics, name) for name in agent.spec.names},
        entropy_collapsed=list(collapsed),
        gradients=_gradient_numbers(gradients, drift),
        lstm=None if lstm is None else lstm.to_dict(),
        seeds=seeds.to_dict(),
        level=level,
        **{name: numbers[name] for name in same},  # type: ignore[arg-type]
    )


def anomaly_event(anomaly: Anomaly) -> AnomalyDetected:
    """An alarm, with what to do about it."""
    return AnomalyDetected(
        anomaly=anomaly.kind.value, message=anomaly.message, advice=ADVICE[anomaly.kind], details=anomaly.details
    )


def _value_numbers(metrics: PPOUpdateMetrics) -> dict[str, float]:
    return {
        "pred_mean": metrics["value_pred_mean"],
        "pred_std": metrics["value_pred_std"],
        "mse_before": metrics["value_mse_before"],
        "mse_after": metrics["value_mse_after"],
        "explained_variance_after": metrics["explained_variance_after"],
        "return_mean": metrics["return_mean"],
        "return_std": metrics["return_std"],
        "return_min": metrics["return_min"],
        "return_max": metrics["return_max"],
    }


def _advantage_numbers(metrics: PPOUpdateMetrics) -> dict[str, float]:
    return {
        "mean": metrics["advantage_mean_prenorm"],
        "std": metrics["advantage_std_prenorm"],
        "min": metrics["advantage_min_prenorm"],
        "max": metrics["advantage_max_prenorm"],
        "positive_share": metrics["advantage_positive_share"],
    }


def _head_numbers(metrics: PPOUpdateMetrics, name: str) -> dict[str, float]:
    return {
        "entropy": _mean(metrics["head_entropies"][name]),
        "choice_entropy": metrics["head_choice_entropies"][name],
        "choices": metrics["head_choices"][name],
        "kl": metrics["head_kls"][name],
        "clip_fraction": metrics["head_clip_fractions"][name],
        "ratio_max": metrics["head_ratio_max"][name],
        "ratio_min": metrics["head_ratio_min"][name],
        "grad_norm": _mean(metrics["head_grad_norms"][name]),
        "entropy_coef": metrics["entropy_coefs"][name],
        "mask_hit_rate": metrics["mask_hit_rates"][name],
    }


def _gradient_numbers(gradients: GradientHealth, drift: GradientDrift) -> dict[str, float]:
    return {
        "norm": gradients["gradient_norm"],
        "health": gradients["gradient_health"],
        "vanishing": gradients["num_vanishing"],
        "exploding": gradients["num_exploding"],
        "nan": gradients["nan_gradients"],
        "inf": gradients["inf_gradients"],
        "zero": gradients["zero_gradients"],
        "drift": drift.norm,
    }


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
