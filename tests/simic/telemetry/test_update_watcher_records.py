"""Debug records point at the cause, and are made on demand only."""

import inspect
from typing import Any

import pytest
import torch

from esper.simic.telemetry import (
    NumericalStabilityReport,
    RatioExplosionDiagnostic,
    SeedGradientCollector,
    TelemetryConfig,
    UpdateWatcher,
    update_watcher,
)
from tests.simic.builders import agent_with_round


def test_a_planted_explosion_is_found_where_it_is() -> None:
    old = torch.full((3, 5), -1.0)
    new, actions = old.clone(), torch.arange(15).view(3, 5) % 4
    new[1, 2], new[2, 4], new[0, 0] = 1.0, -4.0, -0.9
    found = RatioExplosionDiagnostic.from_batch((new - old).exp(), old, new, actions)
    assert found.count == 2
    assert found.indices == [14, 7]  # the larger gap first
    assert found.ratios == pytest.approx([0.0498, 7.389], rel=1e-2)
    assert found.log_prob_gaps == pytest.approx([-3.0, 2.0])
    assert found.actions == [2, 3]
    assert found.action_counts == {2: 1, 3: 1}


def test_what_is_no_number_is_the_worst() -> None:
    gaps = torch.tensor([0.0, 2.0, torch.nan])
    found = RatioExplosionDiagnostic.from_batch(gaps.exp(), torch.zeros(3), gaps, torch.tensor([0, 1, 1]))
    assert found.indices == [2, 1]
    assert found.action_counts == {1: 2}


def test_an_empty_batch_shows_nothing() -> None:
    nothing = torch.zeros(0)
    found = RatioExplosionDiagnostic.from_batch(nothing, nothing, nothing, nothing.long())
    assert (found.count, found.indices, found.action_counts) == (0, [], {})


def test_only_what_is_used_is_asked_for() -> None:
    assert not {"states", "action_masks"} & set(inspect.signature(RatioExplosionDiagnostic.from_batch).parameters)


def watched(level: str, **settings: Any) -> tuple[UpdateWatcher, Any]:
    agent = agent_with_round(**settings)
    watcher = UpdateWatcher(agent, TelemetryConfig(level), 5.0, 0.1)
    agent.observer = watcher
    return watcher, agent.update()


def test_the_report_shows_gradients_before_clipping() -> None:
    watcher, metrics = watched("debug", max_grad_norm=1e-3)
    gradients = watcher.take_gradients()
    records = watcher.take_debug_records(gradients)
    assert records is not None
    stability = records[1]
    assert stability["gradient"]["gradient_norm"] == pytest.approx(metrics["gradient_stats"]["grad_norm"], rel=1e-5)
    assert stability["gradient"]["gradient_norm"] > 1e-3
    assert stability["unit_norms"]["op"] == pytest.approx(metrics["head_grad_norms"]["op"][-1], rel=1e-5)
    assert stability["losses"]["total"] == pytest.approx(metrics["total_loss"], rel=1e-5)
    assert stability["entropies"] == pytest.approx(
        {name: means[-1] for name, means in metrics["head_entropies"].items()}
    )
    assert stability["nonfinite_weights"] == 0
    assert set(records[0]) == set(metrics["head_kls"])


def test_weights_that_are_no_numbers_are_counted() -> None:
    weights = [torch.nn.Parameter(torch.tensor([1.0, torch.nan, torch.inf])), torch.nn.Parameter(torch.ones(2))]
    report = NumericalStabilityReport.of(weights, SeedGradientCollector().collect(weights), {}, {}, {})
    assert report.nonfinite_weights == 2


def test_at_normal_level_no_debug_record_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(_: object) -> dict[str, float]:
        calls.append("norms")
        return {}

    monkeypatch.setattr(update_watcher, "_unit_norms", counted)
    watcher, _ = watched("normal")
    assert watcher.take_debug_records(watcher.take_gradients()) is None
    assert calls == []
    watched("debug")
    assert calls
