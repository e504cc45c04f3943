"""Samples with their labels: checked, held out for validation, cut from text, brought to unit scale."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.leyline import InputError

_SPLIT_SEED = 0
_VAL_MOST = 1024
VAL_SHARE = 0.2
"""Of the training samples, for validation; at most 1,024."""


@dataclass(frozen=True, slots=True)
class Split:
    """Samples `x [M, ...]` and their labels `y [M]`; for text, tokens `[M, T]` and the token after each `[M, T]`."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, slots=True)
class Splits:
    """Hosts train on `train`; signals and decisions come from `val`; only evaluation reads `test`."""

    train: Split
    val: Split
    test: Split


def check_split(what: str, x: Tensor, y: Tensor, classes: int) -> None:
    """Refuse samples `x [M, ...]` and labels `y [M, ...]` that nothing can be learnt from; `what` names them.

    A wrong value would count as an answer, silently.
    """
    if len(x) != len(y) or not x.numel():
        raise InputError(f"{what} holds {len(x):,} samples of shape {tuple(x.shape[1:])} and {len(y):,} labels")
    # The extremes first: they need no copy of what may be gigabytes.
    if x.is_floating_point() and not torch.stack(torch.aminmax(x)).isfinite().all():
        count = int((~x.flatten(1).isfinite().all(1)).sum())
        raise InputError(f"{what} holds {count:,} samples with NaN or infinity; correct or remove them")
    if y.is_floating_point() or not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise InputError(f"{what} holds labels other than the whole numbers 0 to {classes - 1}")


def hold_out(samples: Split) -> tuple[Split, Split]:
    """What is left to train on, and at least one sample, drawn with a fixed seed, for validation."""
    val_samples = min(_VAL_MOST, max(1, int(VAL_SHARE * len(samples))))
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    val, train = order[:val_samples], order[val_samples:]
    return Split(samples.x[train], samples.y[train]), Split(samples.x[val], samples.y[val])


def hold_out_end(samples: Split, val_samples: int) -> tuple[Split, Split]:
    """The samples but the last, and the last `val_samples`: pieces of one text are held out together."""
    cut = len(samples) - val_samples
    return Split(samples.x[:cut], samples.y[:cut]), Split(samples.x[cut:], samples.y[cut:])


def to_sequences(tokens: NDArray[np.generic], context: int, most: int | None = None) -> Split:
    """Tokens `[M, context]` and the token after each `[M, context]`, one stretch of text after the other."""
    count = (len(tokens) - 1) // context
    count = count if most is None else min(count, most)
    stream = torch.from_numpy(tokens[: count * context + 1].astype(np.int64))
    return Split(stream[:-1].view(count, context), stream[1:].view(count, context).clone())


def standardise(splits: Splits) -> Splits:
    """Mean 0 and deviation 1 per channel of `x [M, C, ...]`, by statistics of the training split alone.

    Values become float32; a channel that never varies is only centred.
    """
    x = splits.train.x
    axes = [axis for axis in range(x.ndim) if axis != 1]
    shape = [1, -1, *[1] * (x.ndim - 2)]
    if x.dtype == torch.uint8:
        mean, std = _byte_statistics(x)
    else:
        std, mean = torch.std_mean(x.double(), axes, correction=0)
    std = torch.where(std > 0, std, 1.0)
    mean, std = mean.float().view(shape), std.float().view(shape)
    parts = (splits.train, splits.val, splits.test)
    return Splits(*(Split((part.x.float() - mean).div_(std), part.y) for part in parts))


def _byte_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation per channel of `x [M, C, ...]` in bytes, counted, which spares large copies."""
    counts = torch.stack([torch.bincount(x[:, channel].flatten(), minlength=256) for channel in range(x.shape[1])])
    share = counts.double() / counts.sum(1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64)
    mean = share @ values
    return mean, (share @ values.square() - mean.square()).clamp(min=0).sqrt()
