"""What most loaders do with raw samples: hold some out for validation, cut text, bring values to unit scale."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.tolaria.tasks.registry import Split, Splits

_SPLIT_SEED = 0


def hold_out(samples: Split, val_samples: int) -> tuple[Split, Split]:
    """What is left to train on, and `val_samples` of the samples, drawn with a fixed seed, for validation."""
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
