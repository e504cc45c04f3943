"""The policy's memory: eight numbers, one transfer, and flags instead of exceptions."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from esper.simic.telemetry import AnomalyDetector, AnomalyKind, compute_lstm_health
from tests.simic.agent.test_ppo_transfers import ReadCounter


def states(**overrides: float) -> tuple[Tensor, Tensor]:
    h, c = torch.randn(1, 4, 8), 2 * torch.randn(1, 4, 8)
    if "h" in overrides:
        h[0, 1, 2] = overrides["h"]
    if "c" in overrides:
        c[0, 3, 0] = overrides["c"]
    return h, c


def test_numbers_equal_numpy() -> None:
    h, c = states()
    health = compute_lstm_health((h, c))
    assert health is not None
    a, b = h.numpy(), c.numpy()
    expected = [np.sqrt((a**2).mean()), np.sqrt((b**2).mean()), abs(a).max(), abs(b).max(), a.mean(), a.std()]
    assert list(health.to_dict().values()) == pytest.approx([*expected, 0.0, 0.0], rel=1e-5)


def test_one_transfer_fetches_them_all() -> None:
    hidden, counter = states(), ReadCounter()
    with counter:
        compute_lstm_health(hidden)
    assert counter.reads == 1


def test_no_state_is_not_measured() -> None:
    assert compute_lstm_health(None) is None


@pytest.mark.parametrize(("bad", "flag"), [(math.nan, "has_nan"), (math.inf, "has_inf"), (-math.inf, "has_inf")])
@pytest.mark.parametrize("where", ["h", "c"])
def test_what_is_not_finite_is_flagged(bad: float, flag: str, where: str) -> None:
    health = compute_lstm_health(states(**{where: bad}))
    assert health is not None
    assert [health.has_nan, health.has_inf] == [flag == "has_nan", flag == "has_inf"]
    assert all(math.isfinite(number) for number in health.to_dict().values())
    report = AnomalyDetector().check_all(ratio_max=1.0, ratio_min=1.0, explained_variance=None, lstm=health)
    assert report.kinds == (AnomalyKind.LSTM_UNHEALTHY,)


def test_a_memory_out_of_scale_is_unhealthy() -> None:
    large, usual = compute_lstm_health(states(c=-150.0)), compute_lstm_health(states(c=25.0))
    assert large is not None
    assert usual is not None
    assert (large.is_healthy(), usual.is_healthy()) == (False, True)
    assert large.is_healthy(limit=160.0)


def test_inference_tensors_are_accepted() -> None:
    with torch.inference_mode():
        hidden = states()
    assert compute_lstm_health(hidden) is not None
