"""Images: CIFAR-10, MNIST and Fashion-MNIST from their official files, scikit-learn's digits, and generated stripes.

Their hosts are plausible, not tuned.
"""

import math
from pathlib import Path

import torch

from esper.tasks.files import CIFAR10, FASHION_MNIST, MNIST, DataSet, absent_data, damaged, data_folder, find_file
from esper.tasks.image_files import CIFAR_SHAPE, read_cifar_binary, read_cifar_pickle, read_idx_pair
from esper.tasks.registry import OptimizerSettings, task
from esper.tasks.samples import VAL_SHARE, Split, Splits, hold_out, standardise

_CLASSES = 10
_CIFAR_PICKLED = "cifar-10-batches-py"
_TUNED = OptimizerSettings("adamw", lr=4e-2, schedule="wsd")
"""Best of the host alone on Fashion-MNIST (docs/growth.md); MNIST and the generated images have it from there."""
_LARGER = OptimizerSettings("adamw", lr=1e-2, schedule="wsd")
"""The same for the host of CIFAR-10, found with minibatches of 64."""
_DIGITS = [1100, 300, 397]
_DIGITS_SEED = 0
_GENERATED = (5000, 1000)
_GENERATOR_SEED = 0


def _finish(samples: Split, test: Split, source: Path | None = None) -> Splits:
    """Hold some samples, read from `source`, out for validation, and standardise by what is left."""
    if source is not None and VAL_SHARE * len(samples) < 1:
        raise damaged(source, f"{len(samples)} images are too few to hold some out")
    train, val = hold_out(samples)
    return standardise(Splits(train, val, test))


def _cifar_state() -> str:
    return "here" if not _missing_pickles() else CIFAR10.state()


def _missing_pickles() -> list[str]:
    folder = data_folder() / _CIFAR_PICKLED
    return [name for name in CIFAR10.md5 if not (folder / name.removesuffix(".bin")).is_file()]


@task(
    "cifar10",
    "CIFAR-10: 50,000 colour photographs of 32 by 32",
    host="conv2d",
    host_settings={"channels": (16, 32, 64)},
    classes=_CLASSES,
    optimizer=_LARGER,
    batch_size=512,
    data=_cifar_state,
    needs_files=True,
)
def load_cifar10() -> Splits:
    """48,976 / 1,024 / 10,000 images `[3, 32, 32]`, from the binary or the python version of the archive."""
    if not CIFAR10.missing_files():
        folder = CIFAR10.path()
        batches = [read_cifar_binary(folder / name) for name in CIFAR10.md5]
    elif not _missing_pickles():
        folder = data_folder() / _CIFAR_PICKLED
        batches = [read_cifar_pickle(folder / name.removesuffix(".bin")) for name in CIFAR10.md5]
    else:
        pickled = f"those of the python version into {data_folder() / _CIFAR_PICKLED}"
        raise absent_data("cifar10", f"{CIFAR10.how_to_get()}, or {pickled}")
    *train, test = batches
    samples = Split(torch.cat([part.x for part in train]), torch.cat([part.y for part in train]))
    return _finish(samples, test, folder)


def _load_idx(dataset: DataSet) -> Splits:
    files = [file for name in dataset.md5 if (file := find_file(dataset.path(), name))]
    if len(files) < len(dataset.md5):
        raise absent_data(dataset.name, dataset.how_to_get())
    train_x, train_y, test_x, test_y = files
    return _finish(read_idx_pair(train_x, train_y), read_idx_pair(test_x, test_y), train_x)


@task(
    "mnist",
    "MNIST: 60,000 handwritten digits of 28 by 28",
    host="conv2d",
    classes=_CLASSES,
    optimizer=_TUNED,
    host_settings={"inputs": 1, "channels": (4, 8, 16)},
    data=MNIST.state,
    needs_files=True,
)
def load_mnist() -> Splits:
    """58,976 / 1,024 / 10,000 images `[1, 28, 28]`."""
    return _load_idx(MNIST)


@task(
    "fashion-mnist",
    "Fashion-MNIST: 60,000 pieces of clothing of 28 by 28",
    host="conv2d",
    classes=_CLASSES,
    optimizer=_TUNED,
    host_settings={"inputs": 1, "channels": (8, 16, 32)},
    data=FASHION_MNIST.state,
    needs_files=True,
)
def load_fashion_mnist() -> Splits:
    """58,976 / 1,024 / 10,000 images `[1, 28, 28]`."""
    return _load_idx(FASHION_MNIST)


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
    """1,100 / 300 / 397 images as vectors of 64 values in [0, 1]: a smoke test, on which a linear model does well."""
    # Not above: it takes longer to import than most of Esper, and every worker imports this module.
    from sklearn.datasets import load_digits as load_bundled

    bundled = load_bundled()
    order = torch.randperm(len(bundled.target), generator=torch.Generator().manual_seed(_DIGITS_SEED))
    x = torch.tensor(bundled.data, dtype=torch.float32)[order] / 16
    y = torch.tensor(bundled.target, dtype=torch.int64)[order]
    return Splits(*map(Split, x.split(_DIGITS), y.split(_DIGITS)))


@task(
    "synthetic-images",
    "generated stripes of CIFAR-10's shape; no photographs",
    host="conv2d",
    classes=_CLASSES,
    optimizer=_TUNED,
    host_settings={"channels": (8, 16, 32)},
    data=lambda: "generated at each start, 1 second",
)
def load_synthetic_images() -> Splits:
    """4,000 / 1,000 / 1,000 images `[3, 32, 32]`: the class is the direction (5) and width (2) of stripes in noise."""
    generator = torch.Generator().manual_seed(_GENERATOR_SEED)
    samples, test = (_draw_stripes(num, generator) for num in _GENERATED)
    return _finish(samples, test)


def _draw_stripes(num: int, generator: torch.Generator) -> Split:
    """Stripes of a random phase and two random colours, in noise."""
    y = torch.randint(_CLASSES, (num,), generator=generator)
    angle = (y % 5) * (math.pi / 5) + 0.15 * torch.randn(num, generator=generator)
    frequency = torch.where(y < 5, 0.6, 1.2)
    phase = 2 * math.pi * torch.rand(num, generator=generator)
    colours = torch.randn(2, num, 3, 1, 1, generator=generator)
    rows, columns = (torch.arange(size, dtype=torch.float32) for size in CIFAR_SHAPE[1:])
    along = angle.cos()[:, None, None] * columns + angle.sin()[:, None, None] * rows[:, None]
    wave = torch.sin(frequency[:, None, None] * along + phase[:, None, None]).unsqueeze(1)
    x = colours[0] * wave + 0.5 * colours[1] + torch.randn(num, *CIFAR_SHAPE, generator=generator)
    return Split(x, y)
