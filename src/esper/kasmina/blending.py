"""How alpha rises from 0 to 1 while a seed is blended in."""

import torch
from torch import Tensor

from esper.leyline import BLENDING_EPOCHS, Blend

_STEEPNESS = 12.0


def blend_alpha(blend: Tensor, blend_epoch: Tensor) -> Tensor:
    """Alpha in the given epoch of blending, 1 to `BLENDING_EPOCHS`; exactly 1 in the last.

    Linear and gated climb in equal steps (a gated blend differs in when it may take the next one, not in
    how high that is); sigmoid starts and ends gently.
    """
    progress = blend_epoch / BLENDING_EPOCHS
    low, high = torch.sigmoid(torch.tensor([-_STEEPNESS / 2, _STEEPNESS / 2]))
    gentle = (torch.sigmoid(_STEEPNESS * (progress - 0.5)) - low) / (high - low)
    alpha = torch.where(blend == Blend.SIGMOID, gentle, progress)
    return torch.where(blend_epoch >= BLENDING_EPOCHS, 1.0, alpha)
