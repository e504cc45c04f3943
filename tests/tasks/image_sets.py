"""Tiny data sets in the official layouts, for tests."""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from esper.tasks.files import CIFAR10, DataSet

PER_BATCH = 10

Bytes = NDArray[np.uint8]


def cifar_batch(index: int, num: int = PER_BATCH) -> tuple[Bytes, Bytes]:
    """Pixels `[num, 3072]` and labels of batch `index`; the labels are 0, 1, ... and the pixels random."""
    pixels = np.random.default_rng(index).integers(0, 256, (num, 3072), dtype=np.uint8)
    return pixels, (np.arange(num) % 10).astype(np.uint8)


def write_cifar_binary(folder: Path) -> None:
    folder.mkdir(parents=True)
    for index, name in enumerate(CIFAR10.md5):
        pixels, labels = cifar_batch(index)
        (folder / name).write_bytes(np.concatenate([labels[:, None], pixels], axis=1).tobytes())


def write_cifar_pickles(folder: Path) -> None:
    folder.mkdir(parents=True)
    for index, name in enumerate(CIFAR10.md5):
        pixels, labels = cifar_batch(index)
        batch = {b"batch_label": b"a batch", b"labels": labels.tolist(), b"data": pixels, b"filenames": [b"x.png"]}
        (folder / name.removesuffix(".bin")).write_bytes(pickle.dumps(batch, protocol=2))


def idx_bytes(values: Bytes) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_idx_set(dataset: DataSet, *, zipped: bool, num: int = 20) -> None:
    dataset.path().mkdir(parents=True)
    for index, name in enumerate(dataset.md5):
        generator = np.random.default_rng(index)
        shape = (num, 28, 28) if "images" in name else (num,)
        content = idx_bytes(generator.integers(0, 256 if "images" in name else 10, shape, dtype=np.uint8))
        path = dataset.path() / (f"{name}.gz" if zipped else name)
        path.write_bytes(gzip.compress(content) if zipped else content)
