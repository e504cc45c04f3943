"""Gradient clipping by units."""

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from esper.kasmina.torch_private import clip_gradients


def parameters(seed: int, size: float) -> list[nn.Parameter]:
    """Two with gradients, and one without."""
    dice = torch.Generator().manual_seed(seed)
    made = [nn.Parameter(torch.zeros(shape)) for shape in ((3, 4), (5,), (2,))]
    for parameter in made[:2]:
        parameter.grad = size * torch.randn(parameter.shape, generator=dice)
    return made


@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0, 1e6, torch.inf, torch.nan])
def test_one_unit_is_clipped_as_torch_does(size: float) -> None:
    ours, theirs = parameters(0, size), parameters(0, size)
    (norm,) = clip_gradients([ours], 0.5)
    torch.testing.assert_close(norm, clip_grad_norm_(theirs, 0.5), rtol=0, atol=0, equal_nan=True)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=0, equal_nan=True)


def test_no_unit_shrinks_another_and_one_without_gradients_has_norm_0() -> None:
    small, large = parameters(1, 1e-3), parameters(2, 1e3)
    before = [parameter.grad.clone() for parameter in small if parameter.grad is not None]
    norms = clip_gradients([small, large, [nn.Parameter(torch.ones(2))], []], 1.0)
    assert norms.shape == (4,)
    assert norms[1] > 100
    assert norms[2:].tolist() == [0.0, 0.0]
    after = [parameter.grad for parameter in small if parameter.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert float(clip_gradients([large], 1.0)) == pytest.approx(1.0, rel=1e-4)
