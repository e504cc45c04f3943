"""Gradient health: multi-tensor norms, no waiting, one transfer; several devices and types are combined."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.simic.telemetry import SeedGradientCollector, gradient_collector, materialize_grad_stats
from tests.simic.agent.test_ppo_transfers import ReadCounter


def parameters(*gradients: Tensor | None) -> list[nn.Parameter]:
    made = []
    for gradient in gradients:
        parameter = nn.Parameter(
            torch.zeros(2 if gradient is None else gradient.shape, dtype=getattr(gradient, "dtype", None))
        )
        parameter.grad = gradient
        made.append(parameter)
    return made


def test_norms_and_flags() -> None:
    health = SeedGradientCollector(1e-3, 50.0).collect(
        parameters(torch.tensor([3.0, 4.0]), torch.full((4,), 1e-6), torch.tensor([60.0]), None)
    )
    assert health["gradient_norm"] == pytest.approx((25 + 3600) ** 0.5)
    assert (health["has_vanishing"], health["has_exploding"]) == (True, True)
    assert health["num_gradients"] == 3
    assert health["gradient_health"] == pytest.approx(1 / 3)


def test_the_total_is_what_clipping_reports() -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    model(torch.randn(4, 5)).square().sum().backward()
    norm = SeedGradientCollector().collect(model.parameters())["gradient_norm"]
    assert norm == pytest.approx(float(nn.utils.clip_grad_norm_(model.parameters(), 1e9)), rel=1e-5)


def test_collecting_waits_for_nothing_and_fetching_reads_once() -> None:
    made, collector, counter = parameters(torch.ones(3), torch.ones(2)), SeedGradientCollector(), ReadCounter()
    with counter:
        stats = collector.collect_async(p for p in made)
    assert counter.reads == 0
    with counter:
        fetched = materialize_grad_stats(stats)
    assert counter.reads == 1
    assert fetched == collector.collect(made)


@pytest.mark.parametrize("made", [[], parameters(None, None)])
def test_no_gradients_are_healthy(made: list[nn.Parameter]) -> None:
    health = SeedGradientCollector().collect(made)
    assert (health["gradient_norm"], health["gradient_health"]) == (0.0, 1.0)
    assert health["has_vanishing"] is False
    assert health["has_exploding"] is False


def test_half_precision_does_not_overflow() -> None:
    health = SeedGradientCollector().collect(parameters(torch.full((400,), 300.0, dtype=torch.float16)))
    assert health["gradient_norm"] == pytest.approx(6000.0)


@pytest.mark.parametrize(
    ("gradients", "expected"),
    [
        ([torch.ones(2), torch.ones(2)], 1.0),
        ([torch.ones(2), torch.zeros(2)], 0.5),
        ([torch.zeros(2), torch.full((1,), 1e6)], 0.0),
        ([torch.ones(2), torch.tensor([torch.nan])], 0.0),
        ([torch.ones(2), torch.tensor([torch.inf])], 0.0),
    ],
)
def test_health_is_the_share_that_is_well(gradients: list[Tensor], expected: float) -> None:
    assert SeedGradientCollector().collect(parameters(*gradients))["gradient_health"] == pytest.approx(expected)


def test_planted_numbers_that_are_none_are_counted() -> None:
    health = SeedGradientCollector().collect(
        parameters(torch.tensor([1.0, torch.nan]), torch.tensor([torch.inf]), torch.zeros(3), torch.ones(1))
    )
    counts = health["nan_gradients"], health["inf_gradients"], health["zero_gradients"]
    assert counts == (1, 1, 1)


def test_profiles_fit_their_use() -> None:
    six = parameters(torch.tensor([6.0]))
    assert SeedGradientCollector.for_policy(0.5).collect(six)["has_exploding"]
    assert not SeedGradientCollector().collect(six)["has_exploding"]
    policy = SeedGradientCollector.for_policy(0.5)
    assert (policy.exploding_threshold, policy.vanishing_threshold) == pytest.approx((5.0, 5e-6))


def test_types_are_mixed_and_order_is_kept() -> None:
    kinds = (torch.float32, torch.bfloat16, torch.float64, torch.float32)
    made = parameters(*(torch.full((4,), float(n + 1), dtype=kind) for n, kind in enumerate(kinds)))
    stats = SeedGradientCollector().collect_async(made)
    assert stats.norms is not None
    assert stats.norms.tolist() == pytest.approx([2.0, 4.0, 6.0, 8.0])
    assert materialize_grad_stats(stats)["gradient_norm"] == pytest.approx(120**0.5)


def test_each_device_and_type_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    plain = torch._foreach_norm

    def counted(tensors: list[Tensor], *args: Any) -> Any:
        calls.append(len(tensors))
        return plain(tensors, *args)

    monkeypatch.setattr(torch, "_foreach_norm", counted)
    SeedGradientCollector().collect(parameters(torch.ones(1), torch.ones(2), torch.ones(3, dtype=torch.float64)))
    assert calls == [2, 1]


class ElsewhereTensor:
    """Stands in for a gradient on another device: it says where it is, and its norm comes over when asked."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.device, self.dtype = tensor, torch.device("meta"), torch.float32


def test_devices_are_grouped_and_combined_on_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, groups = torch._foreach_norm, []

    def norms(tensors: list[Any]) -> Any:
        groups.append({tensor.device.type for tensor in tensors})
        return plain([tensor.tensor if isinstance(tensor, ElsewhereTensor) else tensor for tensor in tensors])

    monkeypatch.setattr(torch, "_foreach_norm", norms)
    far: Any = ElsewhereTensor(torch.full((4,), 2.0))
    joined = gradient_collector._norms([torch.ones(4), far, torch.full((4,), 3.0)])
    assert groups == [{"cpu"}, {"meta"}]
    assert joined.tolist() == pytest.approx([2.0, 4.0, 6.0])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus_are_combined() -> None:
    model = [nn.Parameter(torch.ones(4, device=f"cuda:{n}")) for n in range(2)]
    for parameter in model:
        parameter.grad = torch.ones_like(parameter)
    assert SeedGradientCollector().collect(model)["gradient_norm"] == pytest.approx(8**0.5)


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def graph_breaks(function: Callable[[Tensor], Tensor]) -> int:
    def collected(gradients: list[Tensor]) -> Tensor:
        return function(gradient_collector._norms(gradients))

    return int(torch._dynamo.explain(collected)([torch.ones(3), torch.ones(2)]).graph_break_count)


@pytest.mark.usefixtures("fresh_dynamo")
def test_collecting_compiles_without_a_break_and_a_host_read_would_be_seen() -> None:
    counts = SeedGradientCollector()._counts
    assert graph_breaks(lambda norms: torch.cat([norms.square().sum()[None], counts(norms)])) == 0
    assert graph_breaks(lambda norms: counts(norms) * norms.sum().item()) > 0
