"""All kinds of seed: those that refine the tensor at their slot, and branches that connect an earlier one with it.

Kinds that refine have smooth activations and no bias in front of a normalisation: both would leave tensors without
gradient. Their normalisations keep no running statistics; in feature maps they are over all channels and positions.

A branch is two layers from a tensor earlier in the pass to the site, past everything in between, with a ReLU inside and
no normalisation. Each comes in two widths. Where the last layer is born zero, its own gradient is not, so everything in
front of it learns from the second step on.
"""

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.blueprints.registry import MIXES_NOTHING, Mixing, blueprint
from esper.kasmina.sites import Family, Reach, SiteShape

MIN_BOTTLENECK = 4
"""Narrower bottlenecks often die before they learn."""
_MAX_HEADS = 4
_KERNEL = {Family.CONV1D: 5, Family.CONV2D: 3}
"""Of depthwise and heavy seeds and of branches: in one dimension a wide kernel costs little."""
_CONV: dict[Family, Any] = {Family.CONV1D: nn.Conv1d, Family.CONV2D: nn.Conv2d}
_MAX_MIXED_POSITIONS = 256
_NARROW = 1 / 6
_WIDE = 1 / 3
"""Shares of the parameters around the slots that a branch of either width costs, about."""
_MAX_STRIDE = 4
"""Of one layer; what is left is pooled."""


class ScaledSeed(nn.Module):
    """A seed that multiplies its output with a parameter `scale`."""

    scale: nn.Parameter

    def silence(self) -> None:
        """Let `delta` start at exactly 0.

        The scale itself still has a gradient; a zero-initialised layer in front of a normalisation would have none, and
        kill that of all others for good.
        """
        nn.init.zeros_(self.scale)

    def scaled(self, delta: Tensor) -> Tensor:
        return self.scale * delta


def output_scale(site: SiteShape) -> nn.Parameter:
    """A per-channel factor, 1 at first, that a seed multiplies its output with."""
    trailing = 0 if site.family is Family.FEATURES else len(site.extent)
    return nn.Parameter(torch.ones(site.width, *[1] * trailing))


def bottleneck(width: int, divisor: int) -> int:
    """`width / divisor`, but never too narrow to learn."""
    return max(MIN_BOTTLENECK, width // divisor)


def can_normalise(site: SiteShape) -> bool:
    """Whether a normalisation has more than one value to work on; of a single one it leaves nothing."""
    return site.width > 1 if site.family is Family.FEATURES else site.width * site.positions > 1


@blueprint(Family.FEATURES, 1, "norm", "normalises features anew", fits=can_normalise, mixes=MIXES_NOTHING)
@blueprint(Family.CONV1D, 1, "norm", "normalises channels anew", fits=can_normalise, mixes=MIXES_NOTHING)
@blueprint(Family.CONV2D, 1, "norm", "normalises channels anew", fits=can_normalise, mixes=MIXES_NOTHING)
class Norm(nn.Module):
    """A normalisation whose own weight is the output scale."""

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        features = site.family is Family.FEATURES
        self.norm: nn.LayerNorm | nn.GroupNorm = nn.LayerNorm(site.width) if features else nn.GroupNorm(1, site.width)

    def silence(self) -> None:
        nn.init.zeros_(self.norm.weight)

    def forward(self, h: Tensor) -> Tensor:
        # An isolated seed sees a detached input, and torch's backward of GroupNorm crashes the process on
        # a channels-last tensor that needs no gradient.
        result: Tensor = self.norm(h if h.requires_grad else h.contiguous())
        return result


@blueprint(Family.FEATURES, 2, "low_rank", "a linear map through a bottleneck", affine=True)
class LowRank(ScaledSeed):
    """The cheapest way to mix features."""

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        rank = bottleneck(site.width, 8)
        self.down = nn.Linear(site.width, rank, bias=False)
        self.up = nn.Linear(rank, site.width)
        self.scale = output_scale(site)

    def forward(self, h: Tensor) -> Tensor:
        return self.scaled(self.up(self.down(h)))


@blueprint(Family.FEATURES, 3, "gated", "a gated unit of half the width", fits=can_normalise)
class Gated(ScaledSeed):
    """One half decides how much of the other passes."""

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        hidden = bottleneck(site.width, 2)
        self.norm = nn.LayerNorm(site.width)
        self.value_and_gate = nn.Linear(site.width, 2 * hidden)
        self.out = nn.Linear(hidden, site.width)
        self.scale = output_scale(site)

    def forward(self, h: Tensor) -> Tensor:
        value, gate = self.value_and_gate(self.norm(h)).chunk(2, -1)
        return self.scaled(self.out(value * F.silu(gate)))


@blueprint(Family.FEATURES, 4, "mlp", "two layers of twice the width", fits=can_normalise)
class MLP(ScaledSeed):
    """A plain residual MLP."""

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(site.width)
        self.hidden = nn.Linear(site.width, 2 * site.width)
        self.out = nn.Linear(2 * site.width, site.width)
        self.scale = output_scale(site)

    def forward(self, h: Tensor) -> Tensor:
        return self.scaled(self.out(F.silu(self.hidden(self.norm(h)))))


def _num_heads(width: int) -> int:
    """The most heads, up to four, that divide `width` and are wide enough to learn."""
    fitting = [n for n in range(1, _MAX_HEADS + 1) if width % n == 0 and width // n >= MIN_BOTTLENECK]
    return max(fitting, default=1)


@blueprint(
    Family.FEATURES,
    5,
    "attention",
    "causal attention over a sequence",
    fits=lambda site: site.positions > 1 and can_normalise(site),
    mixes=Mixing(positions="all"),
)
class CausalAttention(ScaledSeed):
    """Self-attention that never looks ahead, so that it is safe inside a language model too.

    Queries and keys have no bias: softmax ignores a shift of all keys, so a key bias would never learn.
    """

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        self.num_heads = _num_heads(site.width)
        self.norm = nn.LayerNorm(site.width)
        self.query_key_value = nn.Linear(site.width, 3 * site.width, bias=False)
        self.out = nn.Linear(site.width, site.width)
        self.scale = output_scale(site)

    def forward(self, h: Tensor) -> Tensor:
        heads = self.query_key_value(self.norm(h)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.scaled(self.out(mixed.transpose(1, 2).flatten(2)))


def _conv(site: SiteShape, inputs: int, outputs: int, kernel: int, *, groups: int = 1, bias: bool = True) -> nn.Module:
    made: nn.Module = _CONV[site.family](inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=bias)
    return made


@blueprint(Family.CONV2D, 2, "channel_attention", "weighs channels by the whole map", mixes=Mixing(positions="none"))
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
        self.norm = nn.GroupNorm(1, width)
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
        self.norm = nn.GroupNorm(1, hidden)
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
        width, kernel = site.width, _KERNEL[site.family]
        self.first = _conv(site, width, width, kernel, bias=False)
        self.norm = nn.GroupNorm(1, width)
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
    mixes=Mixing(channels=False, positions="all"),
)
class PositionMixing(ScaledSeed):
    """An MLP along the position axis, shared by all channels; needs the length it was built for."""

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        length = site.positions
        self.norm = nn.GroupNorm(1, site.width)
        self.spread = nn.Linear(length, 2 * length)
        self.gather = nn.Linear(2 * length, length)
        self.scale = output_scale(site)

    def forward(self, h: Tensor) -> Tensor:
        return self.scaled(self.gather(F.silu(self.spread(self.norm(h)))))


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
    conv = _CONV[site.family]
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
