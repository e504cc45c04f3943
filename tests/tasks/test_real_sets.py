"""The real data sets, where they are: official checksums, sizes and scales."""

import importlib.util

import pytest
import torch

from esper.tasks import find_task
from esper.tasks.download import check_files
from esper.tasks.files import SETS

pytestmark = pytest.mark.slow


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


def test_tinystories_load() -> None:
    task = find_task("tinystories")
    if task.data() != "here":
        pytest.skip(f"TinyStories is not here: {task.data()}")
    splits = task.load()
    assert len(splits.train) > len(splits.val)
    assert int(splits.train.x.max()) < task.classes


def test_ucr_series_load() -> None:
    if importlib.util.find_spec("aeon") is None:
        pytest.skip("aeon is not installed: pip install 'esper[ucr]'")
    splits = find_task("ucr:GunPoint").load()
    assert [tuple(part.x.shape) for part in (splits.train, splits.val, splits.test)] == [
        (40, 1, 150),
        (10, 1, 150),
        (150, 1, 150),
    ]
