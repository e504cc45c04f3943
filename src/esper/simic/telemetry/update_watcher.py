"""Watching an update, minibatch by minibatch: how much is collected, and the debug records made of it."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from esper.kasmina.torch_private import tensor_norms
from esper.leyline import MAX_RATIO, MIN_RATIO, Severity, unknown_name
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.rollout_buffer import SequenceBatch
from esper.simic.agent.types import HeadEntropies, HeadLogProbs, TelemetryLevels
from esper.simic.control.action_masks import by_head
from esper.simic.telemetry.gradient_collector import (
    AsyncGradientStats,
    GradientHealth,
    SeedGradientCollector,
    materialize_grad_stats,
)

LEVELS = ("off", "minimal", "normal", "debug")
"""From nothing to everything; each level holds what the ones before it hold."""
_HOST_EVENTS = {"minimal": Severity.WARNING, "normal": Severity.INFO, "debug": Severity.DEBUG}
DEFAULT_ESCALATION = 5
"""Updates at debug level after an anomaly."""


@dataclass(slots=True)
class TelemetryConfig:
    """The level of a run. An anomaly raises it to debug for a few updates; another one starts the count again."""

    level: str = "normal"
    escalation_updates: int = DEFAULT_ESCALATION
    remaining: int = 0
    """Updates that escalation still lasts."""

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise unknown_name("telemetry level", self.level, LEVELS)

    @property
    def current(self) -> str:
        """The level now; a run that records nothing does not escalate."""
        return "debug" if self.remaining and self.level != "off" else self.level

    @property
    def host_events(self) -> Severity | None:
        """The least severity of hosts' events that is wanted now; None wants none."""
        return _HOST_EVENTS.get(self.current)

    def should_collect(self, level: str) -> bool:
        """Whether things of `level` are wanted now."""
        return level != "off" and LEVELS.index(level) <= LEVELS.index(self.current)

    def escalate(self) -> None:
        """Go to debug level for the next updates."""
        self.remaining = self.escalation_updates

    def update_done(self) -> None:
        """Count one update off."""
        self.remaining = max(0, self.remaining - 1)


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


_EMPTY = AsyncGradientStats(empty=True, num_gradients=0)


@dataclass(slots=True)
class _LastMinibatch:
    """What debug records are made of."""

    part: SequenceBatch
    log_probs: HeadLogProbs
    entropies: HeadEntropies
    losses: Mapping[str, Tensor]
    unit_norms: Mapping[str, Tensor]


@dataclass(slots=True)
class UpdateWatcher:
    """An `UpdateObserver`. It keeps tensors of the last minibatch and fetches them once, when the update is over."""

    agent: PPOAgent
    levels: TelemetryLevels
    max_ratio: float
    min_ratio: float
    _collector: SeedGradientCollector = field(init=False)
    _parameters: list[nn.Parameter] = field(init=False)
    _gradients: AsyncGradientStats = field(default=_EMPTY, init=False)
    _last: _LastMinibatch | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._collector = SeedGradientCollector.for_policy(self.agent.config.max_grad_norm)
        self._parameters = list(self.agent.policy.network.parameters())

    def minibatch(
        self, part: SequenceBatch, log_probs: HeadLogProbs, entropies: HeadEntropies, losses: Mapping[str, Tensor]
    ) -> None:
        """Keep what this minibatch shows; nothing is fetched."""
        self._gradients = self._collector.collect_async(self._parameters)
        if self.levels.should_collect("debug"):
            self._last = _LastMinibatch(part, log_probs, entropies, losses, _unit_norms(self.agent.units))

    def take_gradients(self) -> GradientHealth:
        """The gradients of the last minibatch, before clipping, in one transfer."""
        health, self._gradients = materialize_grad_stats(self._gradients), _EMPTY
        return health

    def take_debug_records(self, gradients: GradientHealth) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Ratios per head and the stability of the last minibatch; None unless it ran at debug level."""
        last, self._last = self._last, None
        if last is None:
            return None
        ratios = {name: asdict(self._diagnose(last, name)) for name in self.agent.spec.names}
        losses, norms, entropies = (
            {name: float(number) for name, number in numbers.items()}
            for numbers in (last.losses, last.unit_norms, last.entropies)
        )
        stability = NumericalStabilityReport.of(self._parameters, gradients, norms, losses, entropies)
        return ratios, asdict(stability)

    def _diagnose(self, last: _LastMinibatch, head: str) -> RatioExplosionDiagnostic:
        columns = (last.part.active, last.part.old_log_probs, last.part.actions)
        active, old, actions = (by_head(self.agent.spec, column)[head] for column in columns)
        old, new, actions = old[active], last.log_probs[head][active], actions[active]
        return RatioExplosionDiagnostic.from_batch((new - old).exp(), old, new, actions, self.max_ratio, self.min_ratio)


def _unit_norms(units: Mapping[str, list[nn.Parameter]]) -> dict[str, Tensor]:
    norms = {}
    for name, parameters in units.items():
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if gradients:
            norms[name] = torch.linalg.vector_norm(torch.stack(tensor_norms(gradients)))
    return norms
