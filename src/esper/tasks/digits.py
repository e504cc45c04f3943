"""Handwritten digits of 8 by 8 pixels, bundled with scikit-learn: a smoke test, a linear model does well."""

import torch

from esper.tasks.registry import OptimizerSettings, task
from esper.tasks.samples import Split, Splits

_TRAIN, _VAL = 1100, 300
_SPLIT_SEED = 0


@task(
    "digits",
    "8 by 8 handwritten digits; a smoke test",
    host="mlp",
    classes=10,
    optimizer=OptimizerSettings("adamw", lr=4e-2, schedule="wsd"),
    host_settings={"inputs": 64, "widths": (16, 16, 16)},
    batches_per_epoch=17,
)
def load_digits() -> Splits:
    """1,100 / 300 / 397 images as vectors of 64 values in [0, 1]."""
    # Not above: it takes longer to import than most of Esper, and every worker imports this module.
    from sklearn.datasets import load_digits as load_bundled

    bundled = load_bundled()
    order = torch.randperm(len(bundled.target), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    x = torch.tensor(bundled.data, dtype=torch.float32)[order] / 16
    y = torch.tensor(bundled.target, dtype=torch.int64)[order]
    cuts = (slice(0, _TRAIN), slice(_TRAIN, _TRAIN + _VAL), slice(_TRAIN + _VAL, None))
    return Splits(*(Split(x[cut], y[cut]) for cut in cuts))
