"""Joining a branch to a tensor further on. This file is copied into emitted code, so it uses nothing but torch."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor


def fit_positions(delta: Tensor, h: Tensor) -> Tensor:
    """`delta [N, C, ...]` with as many positions as `h`, to which it is to be added.

    Along an axis with too many of them they are averaged, along one with too few they are repeated.
    """
    have, want = tuple(delta.shape[2:]), tuple(h.shape[2:])
    if have == want:
        return delta
    fewer = tuple(map(min, have, want))
    if fewer != have:
        pool: Callable[..., Tensor] = F.adaptive_avg_pool1d if len(fewer) == 1 else F.adaptive_avg_pool2d
        delta = pool(delta, fewer)
    return delta if fewer == want else F.interpolate(delta, want, mode="nearest")
