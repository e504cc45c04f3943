"""Blueprints for feature maps, in one and two dimensions.

Activations are smooth and no bias stands in front of a normalisation: both would leave tensors without
gradient.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.blueprints.parts import ScaledSeed, bottleneck, can_normalise, group_norm, output_scale
from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.sites import Family, SiteShape

_KERNEL = {Family.CONV1D: 5, Family.CONV2D: 3}
"""Of depthwise and heavy seeds: in one dimension a wide kernel costs little."""
_MAX_MIXED_POSITIONS = 256


def _conv(site: SiteShape, inputs: int, outputs: int, kernel: int, *, groups: int = 1, bias: bool = True) -> nn.Module:
    kind = nn.Conv1d if site.family is Family.CONV1D else nn.Conv2d
    return kind(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=bias)


@blueprint(Family.CONV1D, 1, "norm", "normalises channels anew", fits=can_normalise)
@blueprint(Family.CONV2D, 1, "norm", "normalises channels anew", fits=can_normalise)
class Norm(nn.Module):
    """A normalisation whose own weight is the output scale."""

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        self.norm = group_norm(site.width)

    def silence(self) -> None:
        nn.init.zeros_(self.norm.weight)

    def forward(self, h: Tensor) -> Tensor:
        # An isolated seed sees a detached input, and torch's backward of GroupNorm crashes the process on
        # a channels-last tensor that needs no gradient.
        result: Tensor = self.norm(h if h.requires_grad else h.contiguous())
        return result


@blueprint(Family.CONV2D, 2, "channel_attention", "weighs channels by the whole map")
class ChannelAttention(ScaledSeed):
    """Squeeze to one number per channel, excite through a bottleneck."""

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        hidden = bottleneck(site.width, 4)
        self.squeeze = nn.Linear(site.width, hidden)
        self.excite = nn.Linear(hidden, site.width)
        self.scale = output_scale(site)

    def forward(self, h: Tensor) -> Tensor:
        weight = self.excite(F.silu(self.squeeze(h.mean((2, 3))))).sigmoid()
        return self.scaled(h * weight[:, :, None, None])


@blueprint(Family.CONV1D, 2, "depthwise", "one filter per channel, then a channel mix", fits=can_normalise)
@blueprint(Family.CONV2D, 3, "depthwise", "one filter per channel, then a channel mix", fits=can_normalise)
class Depthwise(ScaledSeed):
    """A separable convolution."""

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        width = site.width
        self.depthwise = _conv(site, width, width, _KERNEL[site.family], groups=width, bias=False)
        self.norm = group_norm(width)
        self.pointwise = _conv(site, width, width, 1)
        self.scale = output_scale(site)

    def forward(self, h: Tensor) -> Tensor:
        return self.scaled(self.pointwise(F.silu(self.norm(self.depthwise(h)))))


@blueprint(Family.CONV1D, 3, "light", "a convolution inside a bottleneck")
@blueprint(Family.CONV2D, 4, "light", "a convolution inside a bottleneck")
class LightConv(ScaledSeed):
    """Down, convolve, up."""

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        hidden = bottleneck(site.width, 4)
        self.down = _conv(site, site.width, hidden, 1, bias=False)
        self.norm = group_norm(hidden)
        self.conv = _conv(site, hidden, hidden, 3)
        self.up = _conv(site, hidden, site.width, 1)
        self.scale = output_scale(site)

    def forward(self, h: Tensor) -> Tensor:
        hidden = F.silu(self.norm(self.down(h)))
        return self.scaled(self.up(F.silu(self.conv(hidden))))


@blueprint(Family.CONV1D, 4, "heavy", "two full convolutions", fits=can_normalise)
@blueprint(Family.CONV2D, 5, "heavy", "two full convolutions", fits=can_normalise)
class HeavyConv(ScaledSeed):
    """A residual block at full width."""

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        width = site.width
        kernel = _KERNEL[site.family]
        self.first = _conv(site, width, width, kernel, bias=False)
        self.norm = group_norm(width)
        self.second = _conv(site, width, width, kernel)
        self.scale = output_scale(site)

    def forward(self, h: Tensor) -> Tensor:
        return self.scaled(self.second(F.silu(self.norm(self.first(h)))))


@blueprint(
    Family.CONV1D,
    5,
    "mixing",
    "every position sees every other",
    fits=lambda site: 2 <= site.positions <= _MAX_MIXED_POSITIONS,
)
class PositionMixing(ScaledSeed):
    """An MLP along the position axis, shared by all channels; needs the length it was built for."""

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        length = site.positions
        hidden = 2 * length
        self.norm = group_norm(site.width)
        self.spread = nn.Linear(length, hidden)
        self.gather = nn.Linear(hidden, length)
        self.scale = output_scale(site)

    def forward(self, h: Tensor) -> Tensor:
        return self.scaled(self.gather(F.silu(self.spread(self.norm(h)))))
