"""What the data of a task must be before a host sees it: a wrong value would count as an answer, silently."""

import torch
from torch import Tensor

from esper.leyline import InputError


def check_split(what: str, x: Tensor, y: Tensor, classes: int) -> None:
    """Refuse samples `x [M, ...]` and labels `y [M, ...]` that nothing can be learnt from; `what` names them."""
    if len(x) != len(y) or not x.numel():
        raise InputError(f"{what} holds {len(x):,} samples of shape {tuple(x.shape[1:])} and {len(y):,} labels")
    # The extremes first: they need no copy of what may be gigabytes.
    if x.is_floating_point() and not torch.stack(torch.aminmax(x)).isfinite().all():
        count = int((~x.flatten(1).isfinite().all(1)).sum())
        raise InputError(f"{what} holds {count:,} samples with NaN or infinity; correct or remove them")
    if y.is_floating_point() or not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise InputError(f"{what} holds labels other than the whole numbers 0 to {classes - 1}")
