"""Files of images: whatever is damaged, lies about its size or would run code is named."""

import codecs
import pickle
import resource
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from esper.leyline import DamagedFileError, InputError
from esper.tasks.images import read_cifar_pickle, read_idx_pair
from tests.tasks.image_sets import (
    cifar_batch,
    idx_bytes,
)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(print))
    with pytest.raises(InputError, match=r"data_batch_1 cannot be used .*it asks for builtins.print"):
        read_cifar_pickle(path)


def _short_string(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text


def test_a_batch_pickled_by_an_old_python_loads(tmp_path: Path) -> None:
    """The official files were written by Python 2 and a numpy that kept its arrays elsewhere."""
    pixels = cifar_batch(0, 2)[0]
    kind = b"cnumpy\ndtype\n" + _short_string(b"u1") + b"K\x00K\x01\x87R(K\x03" + _short_string(b"|")
    state = b"(K\x01K\x02M\x00\x0c\x86" + kind + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
    raw = b"T" + struct.pack("<I", pixels.size) + pixels.tobytes()
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + _short_string(b"b") + b"\x87R"
    labels = _short_string(b"labels") + b"](K\x03K\x07eu."
    path = tmp_path / "data_batch_1"
    path.write_bytes(b"\x80\x02}(" + _short_string(b"data") + made + state + raw + b"tb" + labels)
    batch = read_cifar_pickle(path)
    assert torch.equal(batch.x.flatten(1), torch.from_numpy(pixels))
    assert batch.y.tolist() == [3, 7]


def test_a_flipped_bit_makes_no_room_for_billions_of_values(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(b"\x80\x02}r\xff\xff\xff\x7f.")  # remembered as number 2,147,483,647
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DamagedFileError, match="it holds no array"):
        read_cifar_pickle(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 1_000_000  # in kB; it took 16 GB


class _Calls:
    """Pickled as a call of one of the few things that a pickled array names, with arguments of our choice."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._call


def _laughs() -> list[Any]:
    """A list that is small in a pickle and astronomical when it is walked through."""
    nested: list[Any] = [1] * 10
    for _ in range(30):
        nested = [nested] * 10
    return nested


@pytest.mark.parametrize(
    "batch",
    [
        [1, 2],
        None,
        {b"data": np.zeros((1, 3072), np.uint8)},
        {b"data": [[0] * 3072], b"labels": [0]},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": _laughs()},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": [0.5]},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": [10**400]},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": []},
        {b"data": np.zeros((1, 3072), np.float32), b"labels": [0]},
        {b"data": np.array([None], dtype=object), b"labels": [0]},
        {b"data": _Calls(np.ndarray, (2**60,)), b"labels": [0]},
        {b"data": _Calls(np.dtype, "no such"), b"labels": [0]},
        {b"data": _Calls(codecs.encode, "x", "no such codec"), b"labels": [0]},
    ],
)
def test_a_pickle_of_something_else_is_named(batch: object, tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(DamagedFileError, match=r"data_batch_1 cannot be used .*replace it with the official file"):
        read_cifar_pickle(path)


@pytest.mark.parametrize(
    ("shape", "values"), [((2**31, 2**31, 4), 0), ((0, 28, 28), 0), ((2**32 - 1,) * 3, 5), ((1, 27, 28), 756)]
)
def test_sizes_that_lie_are_named(shape: tuple[int, int, int], values: int, tmp_path: Path) -> None:
    images, labels = tmp_path / "images", tmp_path / "labels"
    images.write_bytes(bytes((0, 0, 8, 3)) + struct.pack(">3I", *shape) + bytes(values))
    labels.write_bytes(idx_bytes(np.zeros(1, np.uint8)))
    with pytest.raises(DamagedFileError, match="images cannot be used"):
        read_idx_pair(images, labels)
