"""Normalisers leave and enter checkpoints through their state dicts, as exact copies."""

import pytest
import torch

from esper.leyline import InputError
from esper.simic.control import RewardNormalizer, RunningMeanStd
from tests.second_device import SECOND


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_running_statistics_round_trip_without_aliasing(momentum: float | None) -> None:
    source, target = RunningMeanStd((3,), momentum=momentum), RunningMeanStd((3,), momentum=momentum)
    source.update(torch.randn(50, 3))
    state = source.state_dict()
    assert set(state) == {"mean", "var", "count"}
    target.load_state_dict(state)
    torch.testing.assert_close(target.state_dict(), source.state_dict(), rtol=0, atol=0)
    state["mean"].add_(1.0)
    torch.testing.assert_close(target.mean, source.mean, rtol=0, atol=0)
    batch = torch.randn(20, 3)
    source.update(batch)
    target.update(batch)
    torch.testing.assert_close(target.state_dict(), source.state_dict(), rtol=0, atol=0)


@pytest.mark.usefixtures("second_device")
def test_running_statistics_load_across_devices() -> None:
    source = RunningMeanStd((3,))
    source.update(torch.randn(50, 3))
    target = RunningMeanStd((3,), device=SECOND)
    target.load_state_dict(source.state_dict())
    assert target.device == SECOND
    batch = torch.randn(4, 3)
    assert torch.equal(target.normalize(batch.to(SECOND)).cpu(), source.normalize(batch))
    for statistics in (source, target):
        statistics.update(batch)  # from any device
    assert target.to("cpu").mean.equal(source.mean)


def test_running_statistics_refuse_what_does_not_fit() -> None:
    statistics = RunningMeanStd((3,))
    good = RunningMeanStd((3,)).state_dict() | {"mean": torch.ones(3, dtype=torch.float64)}
    for wrong, message in (
        ({"mean": torch.zeros(3)}, "lacks var, count"),
        (RunningMeanStd((2,)).state_dict(), r"mean must have shape \[3\]; it has \[2\]"),
        (good | {"var": torch.zeros(2, dtype=torch.float64)}, r"var must have shape \[3\]"),
        (good | {"var": -good["var"]}, "var must be 0 or more"),
        (good | {"count": torch.tensor(torch.nan, dtype=torch.float64)}, "count holds NaN or infinity"),
    ):
        with pytest.raises(InputError, match=message):
            statistics.load_state_dict(wrong)
        assert not statistics.mean.any()  # nothing was taken over


def test_reward_statistics_round_trip_exactly() -> None:
    source, target = RewardNormalizer(), RewardNormalizer()
    for reward in (0.1, -2.0, 0.7):
        source.update_and_normalize(reward)
    state = source.state_dict()
    assert set(state) == {"mean", "m2", "count"}
    target.load_state_dict(state)
    assert (target.mean, target.m2, target.count) == (source.mean, source.m2, source.count)
    assert target.update_and_normalize(0.3) == source.update_and_normalize(0.3)
    with pytest.raises(InputError, match="lacks m2, count"):
        target.load_state_dict({"mean": 0.0})
