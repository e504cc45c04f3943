"""Pieces that several blueprints share."""

import torch
from torch import Tensor, nn

from esper.kasmina.sites import Family, SiteShape

MIN_BOTTLENECK = 4
"""Narrower bottlenecks often die before they learn."""


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


def group_norm(width: int) -> nn.GroupNorm:
    """Normalisation over all channels and positions of a sample; keeps no running statistics."""
    return nn.GroupNorm(1, width)
