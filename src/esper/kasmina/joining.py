"""Adding what a branch computed elsewhere to the tensor of a site. Copied into emitted code, so torch alone is used."""

import torch.nn.functional as F
from torch import Tensor


def fit_positions(delta: Tensor, h: Tensor) -> Tensor:
    """`delta` at the positions of `h`: averaged along axes where it has more of them, repeated where it has fewer."""
    wanted = h.shape[2:]
    if delta.shape[2:] == wanted:
        return delta
    fewer = [min(own, target) for own, target in zip(delta.shape[2:], wanted, strict=True)]
    pooled = (
        F.adaptive_avg_pool1d(delta, fewer) if len(fewer) == 1 else F.adaptive_avg_pool2d(delta, (fewer[0], fewer[1]))
    )
    return pooled if pooled.shape[2:] == wanted else F.interpolate(pooled, wanted, mode="nearest")
