"""Image tasks: the official layouts load with the right shapes, labels and scale, and damage is named."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from esper.leyline import DamagedFileError, InputError
from esper.tasks import Splits, find_task
from esper.tasks.download import check_files
from esper.tasks.files import FASHION_MNIST, MNIST, SETS, DataSet
from tests.tasks.image_sets import (
    cifar_batch,
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "train", "shape"),
    [("cifar10", 48_976, (3, 32, 32)), ("fashion-mnist", 58_976, (1, 28, 28)), ("mnist", 58_976, (1, 28, 28))],
)
def test_official_image_sets_load(name: str, train: int, shape: tuple[int, ...]) -> None:
    dataset = SETS[name]
    if dataset.missing_files():
        pytest.skip(f"{name} is not here: esper data get {name}")
    check_files(dataset, dataset.path())
    splits = find_task(name).load()
    assert (len(splits.train), len(splits.val), len(splits.test)) == (train, 1024, 10_000)
    assert tuple(splits.train.x.shape[1:]) == shape
    assert torch.bincount(splits.train.y).min() > 0.85 * train / 10
    assert abs(float(splits.test.x.mean())) < 0.05  # another draw of the same pictures
