"""Image tasks: the official layouts load with the right shapes, labels and scale, and damage is named."""

import codecs
import gzip
import pickle
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from esper.leyline import DamagedFileError, InputError
from esper.tasks import Splits, find_task
from esper.tasks.files import FASHION_MNIST, MNIST, DataSet, read_bytes
from esper.tasks.image_files import read_cifar_pickle, read_idx_pair
from tests.tasks.image_sets import (
    cifar_batch,
    idx_bytes,
    write_cifar_binary,
    write_cifar_pickles,
    write_idx_set,
)

_BINARY, _PICKLED = "cifar-10-batches-bin", "cifar-10-batches-py"


def _assert_train_is_standardised(splits: Splits) -> None:
    x = splits.train.x.transpose(0, 1).flatten(1)
    torch.testing.assert_close(x.mean(1), torch.zeros(len(x)), atol=1e-4, rtol=0)
    torch.testing.assert_close(x.std(1, correction=0), torch.ones(len(x)), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("folder", "write"), [(_BINARY, write_cifar_binary), (_PICKLED, write_cifar_pickles)])
def test_cifar10_loads_from_both_versions_of_the_archive(
    folder: str, write: Callable[[Path], None], data: Path
) -> None:
    write(data / folder)
    task = find_task("cifar10")
    assert task.data() == "here"
    splits = task.load()
    assert [tuple(part.x.shape) for part in (splits.train, splits.val, splits.test)] == [
        (40, 3, 32, 32),
        (10, 3, 32, 32),
        (10, 3, 32, 32),
    ]
    _assert_train_is_standardised(splits)
    assert splits.test.y.tolist() == list(range(10))
    # One scale per channel: undone, the first test image is what was written, row by row.
    pixels = torch.from_numpy(cifar_batch(5)[0]).view(-1, 3, 32, 32).float()
    for channel in range(3):
        ratio = splits.test.x[:, channel].flatten() - splits.test.x[0, channel, 0, 0]
        spread = pixels[:, channel].flatten() - pixels[0, channel, 0, 0]
        torch.testing.assert_close(ratio, spread * (ratio[1] / spread[1]), atol=1e-4, rtol=1e-4)
    assert task.build_host()(splits.val.x).shape == (10, 10)
    assert task.batch_size == 512


def test_both_versions_of_cifar10_hold_the_same(data: Path) -> None:
    write_cifar_binary(data / _BINARY)
    binary = find_task("cifar10").load()
    (data / _BINARY).rename(data / "elsewhere")
    write_cifar_pickles(data / _PICKLED)
    pickled = find_task("cifar10").load()
    assert torch.equal(binary.train.x, pickled.train.x)
    assert torch.equal(binary.train.y, pickled.train.y)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("dataset", [MNIST, FASHION_MNIST])
def test_idx_files_load_plain_and_gzipped(dataset: DataSet, zipped: bool, data: Path) -> None:
    write_idx_set(dataset, zipped=zipped)
    task = find_task(dataset.name)
    assert task.data() == "here"
    splits = task.load()
    assert (len(splits.train), len(splits.val), len(splits.test)) == (16, 4, 20)
    _assert_train_is_standardised(splits)
    assert task.build_host()(splits.val.x).shape == (4, 10)


@pytest.mark.parametrize("name", ["cifar10", "mnist", "fashion-mnist"])
def test_absent_data_is_one_line_that_says_what_supplies_it(name: str, data: Path) -> None:
    with pytest.raises(InputError) as e:
        find_task(name).load()
    said = str(e.value)
    assert "\n" not in said
    assert f"esper data get {name}" in said
    assert str(data) in said
    assert "tasks that need no download: digits, mnist1d, mnist1d-mlp, mnist1d-shuffled" in said
    assert find_task(name).data() == f"missing: esper data get {name}"
    assert list(data.iterdir()) == []


def test_a_cut_file_is_named(data: Path) -> None:
    write_cifar_binary(data / _BINARY)
    write_idx_set(MNIST, zipped=False)
    write_idx_set(FASHION_MNIST, zipped=True)
    paths = {
        "cifar10": data / _BINARY / "data_batch_3.bin",
        "mnist": data / "mnist" / "t10k-images-idx3-ubyte",
        "fashion-mnist": data / "fashion-mnist" / "train-labels-idx1-ubyte.gz",
    }
    for name, path in paths.items():
        path.write_bytes(path.read_bytes()[:-3])
        with pytest.raises(InputError, match=f"{path.name} cannot be used .*replace it with the official file"):
            find_task(name).load()


def test_files_of_another_kind_are_named(data: Path) -> None:
    write_idx_set(MNIST, zipped=False)
    images, labels = (data / "mnist" / f"train-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1"))
    kept = labels.read_bytes()
    for content, reason in [
        (images.read_bytes(), "not an idx file of bytes in 1 dimensions"),
        (kept[:7] + b"\x0a" + kept[8:18], "labels 10 images and train-images-idx3-ubyte holds 20"),
        (kept[:-1] + b"\x0b", "labels outside 0 to 9"),
    ]:
        labels.write_bytes(content)
        with pytest.raises(InputError, match=reason):
            find_task("mnist").load()


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


def test_a_file_that_unpacks_to_something_huge_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.tasks.files._LARGEST", 1 << 20)
    (tmp_path / "x.gz").write_bytes(gzip.compress(bytes(2 << 20)))
    with pytest.raises(DamagedFileError, match="it holds more than 1 MB"):
        read_bytes(tmp_path / "x.gz")


def test_too_few_images_to_hold_some_out_are_named(data: Path) -> None:
    write_idx_set(MNIST, zipped=False, num=4)
    with pytest.raises(DamagedFileError, match=r"train-images-idx3-ubyte cannot be used .*4 images are too few"):
        find_task("mnist").load()


def test_the_host_learns_synthetic_images() -> None:
    task = find_task("synthetic-images")
    splits = task.splits()
    assert splits.train.x.shape == (4000, 3, 32, 32)
    _assert_train_is_standardised(splits)
    host = task.build_host()
    optimizer = torch.optim.AdamW(host.parameters(), task.optimizer.lr)
    for rows in torch.randperm(4000).split(64)[: 2 * task.batches_per_epoch]:
        optimizer.zero_grad()
        F.cross_entropy(host(splits.train.x[rows]), splits.train.y[rows]).backward()
        optimizer.step()
    with torch.inference_mode():
        assert F.cross_entropy(host(splits.val.x), splits.val.y) < task.guess_loss - 0.05
