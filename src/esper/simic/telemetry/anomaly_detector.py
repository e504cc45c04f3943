"""Alarms: what about an update is not as it should be, in words, with numbers, and with what to do about it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from esper.leyline import (
    ENTROPY_COLLAPSE,
    GRADIENT_DRIFT,
    KL_ANOMALY,
    MAX_RATIO,
    MIN_EXPLAINED_VARIANCE,
    MIN_RATIO,
)
from esper.simic.telemetry.gradient_collector import LSTM_MAGNITUDE, LSTMHealth

LATE_ENTROPY_FACTOR = 0.1
"""In the last phase of a run the limit of entropy is so much lower: a policy is meant to have decided by then."""
VALUE_DIVERGENCE = 1.1
"""A critic whose error on a round is so many times what it was before it learned from it learns something else."""
GAMING_SHARE = 0.25
"""More than this share of the seeds' epochs suspected of gaming: the credit of seeds means nothing any more."""
_LATE = 0.75
"""Share of a run after which a policy may have decided, and a critic must have learned."""
_EARLY_VALUE_LIMITS = ((0.1, -0.5), (0.25, -0.2), (_LATE, 0.0))
"""Until which share of a run which explained variance is still tolerated; after that the configured one counts."""
_MIN_SEED_EPOCHS = 25
"""Fewer epochs of seeds in a round may be those of one host that has died."""
_MOST = 0.75
"""In a very small host that has died no seed can learn: the share has to be larger than such accidents make."""
_MIN_SUSPECTED = 6
"""Fewer suspected epochs of seeds in a round may be chance."""


class AnomalyKind(StrEnum):
    """What can be wrong."""

    RATIO_EXPLOSION = "ratio_explosion"
    RATIO_COLLAPSE = "ratio_collapse"
    VALUE_COLLAPSE = "value_collapse"
    VALUE_DIVERGENCE = "value_divergence"
    NUMERICAL_INSTABILITY = "numerical_instability"
    GRADIENT_DRIFT = "gradient_drift"
    ENTROPY_COLLAPSE = "entropy_collapse"
    KL_SPIKE = "kl_spike"
    LSTM_UNHEALTHY = "lstm_unhealthy"
    SEED_GRADIENT_VANISHING = "seed_gradient_vanishing"
    SEED_GRADIENT_EXPLODING = "seed_gradient_exploding"
    REWARD_GAMING = "reward_gaming"


_FASTER = "lower `learner.lr` or `learner.epochs`, or give `learner.target_kl`"
ADVICE: Mapping[AnomalyKind, str] = {
    AnomalyKind.RATIO_EXPLOSION: _FASTER,
    AnomalyKind.RATIO_COLLAPSE: _FASTER,
    AnomalyKind.VALUE_COLLAPSE: (
        "look at `reward.scale` and `learner.gamma`; raise `learner.value_coef`; wait if the run is young"
    ),
    AnomalyKind.VALUE_DIVERGENCE: "the critic is fitted to something else than the returns: look at its target",
    AnomalyKind.NUMERICAL_INSTABILITY: "look for the first NaN: rewards, observations, then `learner.lr`",
    AnomalyKind.GRADIENT_DRIFT: "compare rewards and returns of this round with those before; lower `learner.lr`",
    AnomalyKind.ENTROPY_COLLAPSE: (
        "raise `learner.entropy_coef`, or `learner.entropy_coef_per_head` of the head; go back to a checkpoint"
    ),
    AnomalyKind.KL_SPIKE: _FASTER,
    AnomalyKind.LSTM_UNHEALTHY: "lower `learner.lr`; look at the observations for values that are out of scale",
    AnomalyKind.SEED_GRADIENT_VANISHING: "look at the blueprint: it cannot learn where it is planted",
    AnomalyKind.SEED_GRADIENT_EXPLODING: "lower `world.seed_lr_scale`, or look at the blueprint",
    AnomalyKind.REWARD_GAMING: "pay by the objective alone, or set `reward.checks.penalty`; look at the seeds view",
}
"""What to do first; fields of `TrainingConfig` stand in backticks."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One alarm."""

    kind: AnomalyKind
    message: str
    details: Mapping[str, Any]


def _found(wrong: bool, kind: AnomalyKind, message: str, **details: Any) -> list[Anomaly]:
    return [Anomaly(kind, message, details)] if wrong else []


@dataclass(frozen=True, slots=True)
class AnomalyReport:
    """All alarms of one update."""

    anomalies: tuple[Anomaly, ...] = ()

    @property
    def has_anomaly(self) -> bool:
        return bool(self.anomalies)

    @property
    def kinds(self) -> tuple[AnomalyKind, ...]:
        return tuple(anomaly.kind for anomaly in self.anomalies)

    @property
    def details(self) -> dict[AnomalyKind, Mapping[str, Any]]:
        return {anomaly.kind: anomaly.details for anomaly in self.anomalies}


@dataclass(frozen=True, slots=True)
class SeedEpochs:
    """Epochs of seeds in one round, counted over all hosts."""

    trained: Mapping[str, int] = field(default_factory=dict)
    """By blueprint: those with a measured gradient."""
    vanishing: Mapping[str, int] = field(default_factory=dict)
    """Of these, with one next to nothing."""
    exploding: Mapping[str, int] = field(default_factory=dict)
    judged: int = 0
    """With a measured contribution."""
    suspected: int = 0
    """Of these, with more credit than the network's gain supports."""

    def mostly(self, counts: Mapping[str, int]) -> list[str]:
        """The blueprints for which `counts` makes up most of what was measured, if that is enough to tell."""
        total = sum(self.trained.values())
        if total >= _MIN_SEED_EPOCHS and sum(counts.values()) > _MOST * total:
            return [name for name, number in counts.items() if number]
        enough = {name: number for name, number in self.trained.items() if number >= _MIN_SEED_EPOCHS}
        return [name for name, number in enough.items() if counts.get(name, 0) > _MOST * number]

    def to_dict(self) -> dict[str, int]:
        """Sums over blueprints."""
        sums = {name: sum(getattr(self, name).values()) for name in ("trained", "vanishing", "exploding")}
        return sums | {"judged": self.judged, "suspected": self.suspected}


@dataclass(slots=True)
class AnomalyDetector:
    """Limits, and the checks against them. None as an argument means that there is nothing to check."""

    max_ratio_threshold: float = MAX_RATIO
    min_ratio_threshold: float = MIN_RATIO
    min_explained_variance: float = MIN_EXPLAINED_VARIANCE
    entropy_limit: float = ENTROPY_COLLAPSE
    kl_limit: float = KL_ANOMALY
    drift_limit: float = GRADIENT_DRIFT
    value_divergence_limit: float = VALUE_DIVERGENCE
    lstm_limit: float = LSTM_MAGNITUDE
    gaming_share: float = GAMING_SHARE

    def check_ratios(self, ratio_max: float, ratio_min: float) -> list[Anomaly]:
        """Probability ratios out of bounds."""
        high, low = self.max_ratio_threshold, self.min_ratio_threshold
        reached = f"a probability ratio reached {ratio_max:.3g} (limit {high:g})"
        fell = f"a probability ratio fell to {ratio_min:.3g} (limit {low:g})"
        found = _found(ratio_max > high, AnomalyKind.RATIO_EXPLOSION, reached, ratio_max=ratio_max, limit=high)
        return found + _found(ratio_min < low, AnomalyKind.RATIO_COLLAPSE, fell, ratio_min=ratio_min, limit=low)

    def value_limit(self, progress: float | None) -> float:
        """The least explained variance at this share of the run: lenient at first; None is the end."""
        for until, limit in _EARLY_VALUE_LIMITS:
            if progress is not None and progress <= until:
                return min(limit, self.min_explained_variance)
        return self.min_explained_variance

    def check_value(self, explained_variance: float, progress: float | None = None) -> list[Anomaly]:
        """A critic that explains too little for how far the run is."""
        limit = self.value_limit(progress)
        message = f"the critic explains {explained_variance:.2f} of the returns' variance (at least {limit:g} by now)"
        details = {"explained_variance": explained_variance, "limit": limit}
        return _found(explained_variance < limit, AnomalyKind.VALUE_COLLAPSE, message, **details)

    def check_value_growth(self, growth: float) -> list[Anomaly]:
        """A critic whose error on a round grows by learning from that round."""
        limit = self.value_divergence_limit
        message = f"learning from the round multiplied the critic's error on it by {growth:.2f}"
        return _found(growth > limit, AnomalyKind.VALUE_DIVERGENCE, message, growth=growth, limit=limit)

    def check_numerics(self, has_nan: bool, has_inf: bool) -> list[Anomaly]:
        """NaN or infinity in a loss, ratio or gradient."""
        message = "a loss, ratio or gradient was not finite, and its minibatch was skipped"
        kind = AnomalyKind.NUMERICAL_INSTABILITY
        return _found(has_nan or has_inf, kind, message, has_nan=has_nan, has_inf=has_inf)

    def check_drift(self, drift: float) -> list[Anomaly]:
        """A gradient norm far from its running mean."""
        limit = self.drift_limit
        message = f"the gradient norm is off its running mean by {drift:.1f} times that mean"
        return _found(drift > limit, AnomalyKind.GRADIENT_DRIFT, message, drift=drift, limit=limit)

    def entropy_limit_at(self, progress: float | None) -> float:
        """The least normalised entropy at this share of the run."""
        late = progress is not None and progress > _LATE
        return self.entropy_limit * LATE_ENTROPY_FACTOR if late else self.entropy_limit

    def collapsed_heads(self, entropies: Mapping[str, float], progress: float | None = None) -> list[str]:
        """The heads that no longer explore."""
        limit = self.entropy_limit_at(progress)
        return [name for name, entropy in entropies.items() if entropy < limit]

    def check_entropy(
        self, entropy: float | None, head_entropies: Mapping[str, float] | None, progress: float | None = None
    ) -> list[Anomaly]:
        """Normalised entropies below the limit, overall or of single heads."""
        collapsed = self.collapsed_heads(head_entropies or {}, progress)
        limit = self.entropy_limit_at(progress)
        if not collapsed and (entropy is None or entropy >= limit):
            return []
        numbers = {name: (head_entropies or {})[name] for name in collapsed}
        named = ", ".join(f"{name} {number:.3f}" for name, number in numbers.items())
        message = f"normalised entropy below {limit:g}: {named or f'overall {entropy:.3f}'}"
        details = {"heads": collapsed, "entropies": numbers, "entropy": entropy, "limit": limit}
        return [Anomaly(AnomalyKind.ENTROPY_COLLAPSE, message, details)]

    def check_kl(self, kl: float) -> list[Anomaly]:
        """An update that moved the policy too far."""
        limit = self.kl_limit
        message = f"the update moved the policy by {kl:.3g} nats (limit {limit:g})"
        return _found(math.isnan(kl) or kl > limit, AnomalyKind.KL_SPIKE, message, kl=kl, limit=limit)

    def check_lstm(self, health: LSTMHealth) -> list[Anomaly]:
        """A memory that is not finite or out of scale."""
        message = f"the policy's memory reaches {max(health.h_max, health.c_max):.3g} (limit {self.lstm_limit:g})"
        if health.has_nan or health.has_inf:
            message = "the policy's memory is not finite"
        sick = not health.is_healthy(self.lstm_limit)
        return _found(sick, AnomalyKind.LSTM_UNHEALTHY, message, **health.to_dict())

    def check_seeds(self, seeds: SeedEpochs) -> list[Anomaly]:
        """Seeds that cannot learn, seeds that leave the scale, and seeds that look better than they are."""
        found = []
        kinds = (
            (AnomalyKind.SEED_GRADIENT_VANISHING, seeds.vanishing, "next to no gradient"),
            (AnomalyKind.SEED_GRADIENT_EXPLODING, seeds.exploding, "an exploding gradient"),
        )
        for kind, counts, what in kinds:
            names = seeds.mostly(counts)
            if names:
                shares = ", ".join(f"{name} in {counts[name]} of {seeds.trained[name]} epochs" for name in names)
                epochs = {name: counts[name] for name in names}
                found.append(Anomaly(kind, f"seeds had {what}: {shares}", {"blueprints": names, "epochs": epochs}))
        suspected, judged, limit = seeds.suspected, seeds.judged, self.gaming_share
        many = suspected >= _MIN_SUSPECTED and suspected > limit * judged
        message = f"seeds look better than they are in {suspected} of {judged} measured epochs"
        kind = AnomalyKind.REWARD_GAMING
        return found + _found(many, kind, message, suspected=suspected, judged=judged, limit=limit)

    def check_all(
        self,
        *,
        ratio_max: float,
        ratio_min: float,
        explained_variance: float | None,
        has_nan: bool = False,
        has_inf: bool = False,
        entropy: float | None = None,
        head_entropies: Mapping[str, float] | None = None,
        kl: float | None = None,
        drift: float | None = None,
        value_growth: float | None = None,
        lstm: LSTMHealth | None = None,
        seeds: SeedEpochs | None = None,
        current_episode: int | None = None,
        total_episodes: int | None = None,
    ) -> AnomalyReport:
        """Every check that there are numbers for."""
        progress = None if current_episode is None or not total_episodes else current_episode / total_episodes
        found = self.check_numerics(has_nan, has_inf) + self.check_ratios(ratio_max, ratio_min)
        found += [] if explained_variance is None else self.check_value(explained_variance, progress)
        found += [] if value_growth is None else self.check_value_growth(value_growth)
        found += self.check_entropy(entropy, head_entropies, progress)
        found += [] if kl is None else self.check_kl(kl)
        found += [] if drift is None else self.check_drift(drift)
        found += [] if lstm is None else self.check_lstm(lstm)
        found += [] if seeds is None else self.check_seeds(seeds)
        return AnomalyReport(tuple(found))
