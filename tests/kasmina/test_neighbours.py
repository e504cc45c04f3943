"""Whether the order of an input means something."""

import math
from typing import Any

import pytest
import torch

from esper.kasmina import Family, Site, SiteShape, neighbour_correlation

MAPS = (Site("0", "r0c0", SiteShape(Family.CONV1D, 4, (9,)), torch.float32),)
FEATURES = (Site("0", "r0c0", SiteShape(Family.FEATURES, 4), torch.float32),)


def smooth_series(samples: int = 400, length: int = 30) -> torch.Tensor:
    """Random walks: each position is the one before it and a little more."""
    return torch.randn(samples, 1, length, generator=torch.Generator().manual_seed(0)).cumsum(-1)


def test_smooth_series_are_ordered_and_permuted_or_random_ones_are_not() -> None:
    smooth = smooth_series()
    noise = torch.randn(400, 1, 30, generator=torch.Generator().manual_seed(1))
    assert neighbour_correlation(smooth, MAPS) > 0.9
    assert abs(neighbour_correlation(noise, MAPS)) < 0.05
    order = torch.randperm(30, generator=torch.Generator().manual_seed(2))
    steps = smooth.diff(dim=-1)  # without the trend that a walk keeps in any order
    blurred = (steps[..., 1:] + steps[..., :-1])[..., :28]
    permuted = blurred[..., order[order < 28]]
    assert neighbour_correlation(blurred, MAPS) > 0.4
    assert abs(neighbour_correlation(permuted, MAPS)) < 0.2


def test_what_all_samples_share_is_no_likeness() -> None:
    noise = torch.randn(400, 30, generator=torch.Generator().manual_seed(1))
    common = 100 * torch.linspace(0, 1, 30)
    assert neighbour_correlation(noise + common, MAPS) == pytest.approx(neighbour_correlation(noise, MAPS), abs=1e-4)


@pytest.mark.parametrize(
    "inputs",
    [torch.zeros(8, 5), torch.randn(8, 1), torch.randn(1, 5), torch.randint(5, (8, 5)), {"x": torch.randn(8, 5)}],
)
def test_where_nothing_can_be_compared_nothing_is_said(inputs: Any) -> None:
    assert math.isnan(neighbour_correlation(inputs, MAPS))


def test_networks_of_features_have_no_positions() -> None:
    assert math.isnan(neighbour_correlation(smooth_series(), FEATURES))
