"""Looks on during an update: gradients always, and at debug level what an explosion can be traced by."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from esper.kasmina.torch_private import tensor_norms
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.rollout_buffer import SequenceBatch
from esper.simic.agent.types import HeadEntropies, HeadLogProbs, TelemetryLevels, by_head
from esper.simic.telemetry.debug_records import NumericalStabilityReport, RatioExplosionDiagnostic
from esper.simic.telemetry.gradient_collector import (
    AsyncGradientStats,
    GradientHealth,
    SeedGradientCollector,
    materialize_grad_stats,
)

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
        ratios = {name: self._diagnose(last, name).to_dict() for name in self.agent.spec.names}
        losses, norms, entropies = (
            {name: float(number) for name, number in numbers.items()}
            for numbers in (last.losses, last.unit_norms, last.entropies)
        )
        return ratios, NumericalStabilityReport.of(self._parameters, gradients, norms, losses, entropies).to_dict()

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
