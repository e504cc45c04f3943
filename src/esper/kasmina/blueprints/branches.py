"""Blueprints that connect: two layers from a tensor earlier in the pass to the site, past everything in between.

Each comes in two widths. Inside there is a ReLU and no normalisation. Where the last layer is born zero, its own
gradient is not, so everything in front of it learns from the second step on.
"""

import math
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.sites import Family, Reach, SiteShape

_NARROW = 1 / 6
_WIDE = 1 / 3
"""Shares of the parameters around the slots that a branch of either width costs, about."""
_KERNEL = {Family.CONV1D: 5, Family.CONV2D: 3}
_MAX_STRIDE = 4
"""Of one layer; what is left is pooled."""


class Branch(nn.Module):
    """Two layers that share the stride between source and site: convolutions, or linear ones at every position."""

    reads: ClassVar[Reach]
    share: ClassVar[float]

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        source = site.source(self.reads)
        assert source is not None, "the registry builds branches only where there is a source"
        self.first, self.second = (_linear if site.family is Family.FEATURES else _convolutions)(
            source, site, self.share
        )

    def forward(self, source: Tensor) -> Tensor:
        """What is added to the site; feature maps may differ from it by a rest of their positions."""
        result: Tensor = self.second(F.relu(self.first(source)))
        return result

    def silence(self) -> None:
        """Let the output be zero, as long as nothing is learned."""
        for parameter in self.second.parameters():
            nn.init.zeros_(parameter)


def _hidden(site: SiteShape, share: float, per_unit: int) -> int:
    """How many hidden units cost this share, each having `per_unit` parameters; one at least."""
    return max(1, round((share * site.around - site.width) / per_unit))


def _linear(source: SiteShape, site: SiteShape, share: float) -> tuple[nn.Module, nn.Module]:
    hidden = _hidden(site, share, source.width + 1 + site.width)
    return nn.Linear(source.width, hidden), nn.Linear(hidden, site.width)


def _convolutions(source: SiteShape, site: SiteShape, share: float) -> tuple[nn.Module, nn.Module]:
    strides = [_shared_stride(a, b, site.family) for a, b in zip(source.extent, site.extent, strict=True)]
    first_stride, second_stride = (tuple(stride[layer] for stride in strides) for layer in range(2))
    first_kernel = tuple(max(_KERNEL[site.family], _odd(stride)) for stride in first_stride)
    second_kernel = tuple(max(3, _odd(stride)) for stride in second_stride)
    hidden = _hidden(site, share, source.width * math.prod(first_kernel) + 1 + site.width * math.prod(second_kernel))
    conv: Any = nn.Conv1d if site.family is Family.CONV1D else nn.Conv2d
    return (
        conv(source.width, hidden, first_kernel, first_stride, _same(first_kernel)),
        conv(hidden, site.width, second_kernel, second_stride, _same(second_kernel)),
    )


def _shared_stride(source: int, site: int, family: Family) -> tuple[int, int]:
    """Strides of two layers that together lead from `source` to `site` positions, the larger one last.

    Many positions in between pay (docs/growth.md). In two dimensions they cost too much, so there both take a share.
    """
    total = max(1, round(source / site))
    pairs = [(a, total // a) for a in range(1, total + 1) if total % a == 0 and a <= total // a <= _MAX_STRIDE]
    if not pairs:
        return min(_MAX_STRIDE, math.isqrt(total)), _MAX_STRIDE
    return pairs[0] if family is Family.CONV1D else pairs[-1]


def _odd(stride: int) -> int:
    """The smallest odd kernel that leaves nothing out at this stride."""
    return stride + 1 - stride % 2


def _same(kernel: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size // 2 for size in kernel)


@blueprint(Family.CONV1D, 6, "far_narrow", "two convolutions from the earliest tensor", reads="far")
@blueprint(Family.CONV2D, 6, "far_narrow", "two convolutions from the earliest tensor", reads="far")
@blueprint(Family.FEATURES, 6, "far_narrow", "one hidden layer from the earliest tensor", reads="far")
class FarNarrow(Branch):
    """From far, for about a sixth of what is around."""

    reads, share = "far", _NARROW


@blueprint(Family.CONV1D, 7, "far_wide", "two wide convolutions from the earliest tensor", reads="far")
@blueprint(Family.CONV2D, 7, "far_wide", "two wide convolutions from the earliest tensor", reads="far")
@blueprint(Family.FEATURES, 7, "far_wide", "a wide hidden layer from the earliest tensor", reads="far")
class FarWide(Branch):
    """From far, for about a third of what is around."""

    reads, share = "far", _WIDE


@blueprint(Family.CONV1D, 8, "near_narrow", "two convolutions past two submodules", reads="near")
@blueprint(Family.CONV2D, 8, "near_narrow", "two convolutions past two submodules", reads="near")
@blueprint(Family.FEATURES, 8, "near_narrow", "one hidden layer past two submodules", reads="near")
class NearNarrow(Branch):
    """From near, for about a sixth of what is around."""

    reads, share = "near", _NARROW


@blueprint(Family.CONV1D, 9, "near_wide", "two wide convolutions past two submodules", reads="near")
@blueprint(Family.CONV2D, 9, "near_wide", "two wide convolutions past two submodules", reads="near")
@blueprint(Family.FEATURES, 9, "near_wide", "a wide hidden layer past two submodules", reads="near")
class NearWide(Branch):
    """From near, for about a third of what is around."""

    reads, share = "near", _WIDE
