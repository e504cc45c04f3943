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
    with pytest.raises(InputError, match="mean, var and count"):
        RunningMeanStd((3,)).load_state_dict({"mean": torch.zeros(3)})
    with pytest.raises(InputError, match="shape"):
        RunningMeanStd((3,)).load_state_dict(RunningMeanStd((2,)).state_dict())


def test_reward_statistics_round_trip_exactly() -> None:
    source, target = RewardNormalizer(), RewardNormalizer()
    for reward in (0.1, -2.0, 0.7):
        source.update_and_normalize(reward)
    state = source.state_dict()
    assert set(state) == {"mean", "m2", "count"}
    target.load_state_dict(state)
    assert (target.mean, target.m2, target.count) == (source.mean, source.m2, source.count)
    assert target.update_and_normalize(0.3) == source.update_and_normalize(0.3)
    with pytest.raises(InputError, match="mean, m2 and count"):
        target.load_state_dict({"mean": 0.0})
