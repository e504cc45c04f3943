"""Reading images from the files of their official archives: idx, and CIFAR-10 pickled or binary."""

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
from esper.tasks.files import damaged, read_bytes
from esper.tasks.samples import Split

_IDX_BYTES = 0x08
_IDX_IMAGE = (28, 28)
CIFAR_SHAPE = (3, 32, 32)
_CIFAR_PIXELS = 3 * 32 * 32
_CLASSES = 10


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
