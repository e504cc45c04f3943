"""Whether the order of positions means something: how alike the neighbours in an input are."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from esper.kasmina.sites import Family, Site

_SAMPLES = 512
"""Samples that are looked at: enough for a correlation to two digits."""


def neighbour_correlation(inputs: Any, sites: Iterable[Site]) -> float:
    """The correlation, over samples, of positions of the input that are next to each other; NaN where there is none.

    `inputs` is a batch as the host takes it. Its last axis is looked at, if the host keeps positions apart anywhere:
    time in series, columns in images. About 1 in smooth series, and about 0 once their positions are permuted, where
    kinds that mix neighbours have nothing to go by.
    """
    ordered = any(site.shape.family is not Family.FEATURES for site in sites)
    usable = isinstance(inputs, Tensor) and inputs.is_floating_point() and inputs.dim() > 1
    if not (ordered and usable) or inputs.shape[-1] < 2 or len(inputs) < 2:
        return math.nan
    samples = inputs.detach()[:_SAMPLES].double()
    # What all samples share, such as dark margins, is no likeness.
    samples = samples - samples.mean(0)
    left, right = samples[..., :-1], samples[..., 1:]
    size = (left.square().sum() * right.square().sum()).sqrt()
    return float(torch.where(size > 0, (left * right).sum() / size, torch.nan))
