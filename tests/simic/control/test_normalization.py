"""Running statistics: equal to NumPy's, stable, safe for autograd, unharmed by bad samples."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline import InputError
from esper.simic.control import RewardNormalizer, RunningMeanStd


@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=8).filter(lambda sizes: sum(sizes) > 0))
def test_statistics_do_not_depend_on_how_the_data_is_split(sizes: list[int]) -> None:
    data = 3.0 + 2.0 * torch.randn(sum(sizes), 4)
    statistics = RunningMeanStd((4,))
    for part in data.split(sizes):
        statistics.update(part)
    np.testing.assert_allclose(statistics.mean, data.double().mean(0), atol=1e-5)
    np.testing.assert_allclose(statistics.var, data.double().var(0, correction=0), atol=1e-5)
    assert statistics.count == len(data)


def test_variance_survives_a_large_mean() -> None:
    torch.manual_seed(0)
    statistics = RunningMeanStd(())
    data = 1e6 + torch.randn(20, 500)
    for batch in data:
        statistics.update(batch)
    assert statistics.var.item() == pytest.approx(data.double().var().item(), rel=0.01)


def test_updated_statistics_can_enter_autograd() -> None:
    statistics = RunningMeanStd((3,))
    statistics.update(torch.randn(10, 3))
    assert not any(part.is_inference() for part in (statistics.mean, statistics.var, statistics.count))
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    (weight * statistics.mean).sum().backward()
    assert weight.grad is not None
    statistics.mean += 1.0


def test_samples_with_nan_or_infinity_are_left_out() -> None:
    clean = torch.randn(20, 2)
    dirty = torch.cat([clean, torch.tensor([[math.nan, 1.0], [1.0, math.inf]])])
    one, other = RunningMeanStd((2,)), RunningMeanStd((2,))
    one.update(clean)
    other.update(dirty)
    other.update(torch.full((3, 2), math.nan))
    torch.testing.assert_close(one.state_dict(), other.state_dict())


def test_normalised_values_are_standard_and_cut() -> None:
    statistics = RunningMeanStd((2,))
    data = 5.0 + 3.0 * torch.randn(1000, 2)
    torch.testing.assert_close(statistics.normalize(data), data.clamp(-10.0, 10.0))
    statistics.update(data)
    scaled = statistics.normalize(data)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(2), atol=1e-5, rtol=0)
    assert scaled.dtype == data.dtype
    assert statistics.normalize(torch.full((1, 2), 1e9)).tolist() == [[10.0, 10.0]]


def test_momentum_follows_a_shift_at_the_predicted_rate() -> None:
    statistics = RunningMeanStd((), momentum=0.9)
    statistics.update(torch.zeros(10))
    assert statistics.mean == 0
    for batch in range(1, 31):
        statistics.update(torch.full((10,), 4.0))
        assert statistics.mean.item() == pytest.approx(4.0 * (1 - 0.9**batch))
        # A mixture of point masses at 0 and 4, with weights 0.9^n and the rest.
        assert statistics.var.item() == pytest.approx(16.0 * 0.9**batch * (1 - 0.9**batch))
    assert statistics.count == 310


@pytest.mark.parametrize("momentum", [-0.1, 1.0])
def test_momentum_outside_its_range_is_refused(momentum: float) -> None:
    with pytest.raises(InputError, match="momentum"):
        RunningMeanStd((), momentum=momentum)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_reward_statistics_equal_numpy_and_results_stay_within_the_clip(rewards: list[float]) -> None:
    normalizer = RewardNormalizer(clip=10.0)
    results = [normalizer.update_and_normalize(reward) for reward in rewards]
    assert all(math.isfinite(result) and abs(result) <= 10.0 for result in results)
    if np.std(rewards) > 1e-3:
        assert normalizer.std == pytest.approx(np.std(rewards), rel=1e-6)


def test_normalising_alone_leaves_the_reward_statistics_unchanged() -> None:
    normalizer = RewardNormalizer()
    for reward in (1.0, 2.0, 4.0):
        normalizer.update_and_normalize(reward)
    before = normalizer.state_dict()
    normalizer.normalize_only(100.0)
    assert math.isnan(normalizer.update_and_normalize(math.nan))
    assert normalizer.state_dict() == before
