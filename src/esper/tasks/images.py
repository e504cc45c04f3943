"""Image tasks: CIFAR-10, MNIST, Fashion-MNIST, scikit-learn's digits and generated stripes.

First the readers of their files (idx, and CIFAR-10 in its binary or pickled version), then the tasks.
"""

import io
import math
import pickle
import struct
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.leyline import DamagedFileError
from esper.tasks.files import (
    CIFAR10,
    FASHION_MNIST,
    MNIST,
    DataSet,
    absent_data,
    damaged,
    data_folder,
    find_file,
    read_bytes,
)
from esper.tasks.registry import VAL_SHARE, OptimizerSettings, Split, Splits, hold_out, standardise, task

_IDX_BYTES = 0x08
_IDX_IMAGE = (28, 28)
CIFAR_SHAPE = (3, 32, 32)
_CIFAR_PIXELS = 3 * 32 * 32
_CLASSES = 10
_CIFAR_PICKLED = "cifar-10-batches-py"
_TUNED = OptimizerSettings("adamw", lr=4e-2, schedule="wsd")
"""Best of the host alone on Fashion-MNIST (docs/growth.md); MNIST and the generated images have it from there."""
_LARGER = OptimizerSettings("adamw", lr=1e-2, schedule="wsd")
"""The same for the host of CIFAR-10, found with minibatches of 64."""
_DIGITS = [1100, 300, 397]
_GENERATED = (5000, 1000)
_SEED = 0


def read_idx(path: Path, dimensions: int) -> Tensor:
    """The bytes of an idx file with that many dimensions."""
    raw = read_bytes(path)
    start = 4 + 4 * dimensions
    if len(raw) < start or raw[:4] != bytes((0, 0, _IDX_BYTES, dimensions)):
        raise damaged(path, f"it is not an idx file of bytes in {dimensions} dimensions")
    shape = struct.unpack_from(f">{dimensions}I", raw, 4)
    if len(raw) - start != math.prod(shape):  # of Python's numbers, which do not overflow
        raise damaged(path, f"it should hold {math.prod(shape):,} values and holds {len(raw) - start:,}")
    if not math.prod(shape):
        raise damaged(path, "it holds no values")
    return torch.frombuffer(bytearray(raw[start:]), dtype=torch.uint8).view(shape)


def read_idx_pair(images: Path, labels: Path) -> Split:
    """Images `[M, 1, 28, 28]` as bytes and their labels."""
    x, y = read_idx(images, 3), read_idx(labels, 1)
    if x.shape[1:] != _IDX_IMAGE:
        raise damaged(images, f"its images are {x.shape[1]:,} by {x.shape[2]:,}, not 28 by 28")
    if len(x) != len(y):
        raise damaged(labels, f"it labels {len(y):,} images and {images.name} holds {len(x):,}")
    return Split(x.unsqueeze(1), _checked_labels(labels, y))


def read_cifar_binary(path: Path) -> Split:
    """One batch of the binary version: a label and 3,072 pixels in bytes per image."""
    raw = read_bytes(path)
    if not raw or len(raw) % (1 + _CIFAR_PIXELS):
        raise damaged(path, f"{len(raw):,} bytes are not a whole number of images of {1 + _CIFAR_PIXELS:,}")
    rows = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, 1 + _CIFAR_PIXELS)
    return Split(rows[:, 1:].reshape(-1, *CIFAR_SHAPE), _checked_labels(path, rows[:, 0]))


def read_cifar_pickle(path: Path) -> Split:
    """One batch of the python version: a pickled dict with `data [M, 3072]` and `labels`."""
    raw = read_bytes(path)
    try:
        batch = _ArrayUnpickler(io.BytesIO(raw), encoding="bytes").load()
    except Exception as error:  # a damaged pickle calls what it names with anything, which raises anything
        raise damaged(path, f"it is not a pickled batch: {error}") from None
    pixels, labels = (batch.get(b"data"), batch.get(b"labels")) if isinstance(batch, dict) else (None, None)
    pixels = pixels.values if isinstance(pixels, _Bytes) else pixels
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, list) or not labels:
        raise damaged(path, "it holds no array of data with a list of labels")
    if pixels.shape != (len(labels), _CIFAR_PIXELS):
        raise damaged(path, f"its data is of shape {pixels.shape}, with {len(labels):,} labels")
    if not all(type(label) is int and 0 <= label < _CLASSES for label in labels):
        raise _wrong_labels(path)
    images = torch.from_numpy(pixels.copy()).view(-1, *CIFAR_SHAPE)
    return Split(images, torch.tensor(labels, dtype=torch.int64))


def _checked_labels(path: Path, labels: Tensor) -> Tensor:
    y = labels.to(torch.int64)
    if not 0 <= int(y.min()) <= int(y.max()) < _CLASSES:
        raise _wrong_labels(path)
    return y


def _wrong_labels(path: Path) -> DamagedFileError:
    return damaged(path, f"it holds labels outside 0 to {_CLASSES - 1}")


class _Kind:
    """Stands for a pickled `numpy.dtype`."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        self.is_byte = code in ("u1", b"u1")

    def __setstate__(self, state: object) -> None:
        """Nothing of it matters to bytes."""


class _Bytes:
    """Stands for a pickled array, of which only one of bytes is ever made."""

    def __init__(self, *_: object) -> None:
        self.values: NDArray[np.uint8] | None = None

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Kind, bool, bytes]) -> None:
        _, shape, kind, by_column, raw = state
        self.values = _make_bytes(raw, kind, shape, "F" if by_column else "C")


def _make_bytes(raw: bytes, kind: _Kind, shape: tuple[int, ...], order: Literal["C", "F"]) -> NDArray[np.uint8]:
    if not kind.is_byte:
        raise pickle.UnpicklingError("its array is not one of bytes")
    return np.frombuffer(raw, np.uint8).reshape(shape, order=order)


def _encode(text: str, _: str) -> bytes:
    return text.encode("latin1")  # as newer Pythons write bytes for older ones


_ARRAY_PARTS: dict[tuple[str, str], Any] = {
    ("multiarray", "_reconstruct"): _Bytes,
    ("numeric", "_frombuffer"): _make_bytes,
    ("numpy", "ndarray"): _Bytes,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encode,
}
"""What a pickled array names, by the last part of the module's name, and what it gets instead.

numpy's own would make arrays of any size and type, which a few bytes can ask for.
"""


class _ArrayUnpickler(pickle._Unpickler):
    """Makes arrays of bytes and nothing else: a pickle from elsewhere could otherwise run any code.

    It is the one in Python: that in C makes room for as many remembered values as a flipped bit may ask for.
    """

    def find_class(self, module: str, name: str) -> Any:
        """What stands for one of the few things that a pickled array names, wherever its numpy had them."""
        parts = module.split(".")
        known = _ARRAY_PARTS.get((parts[-1], name)) if len(parts) == 1 or parts[0] == "numpy" else None
        if known is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return known


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
    order = torch.randperm(len(bundled.target), generator=torch.Generator().manual_seed(_SEED))
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
    generator = torch.Generator().manual_seed(_SEED)
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
