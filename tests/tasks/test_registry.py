"""Tasks: three disjoint splits that fit their hosts, each found by its name."""

from dataclasses import replace

import pytest

from esper.leyline import InputError
from esper.tasks import find_task, task_names
from tests.worlds import TINY, tiny_task


@pytest.mark.parametrize(
    ("name", "sizes", "params"),
    [
        ("mnist1d", (3200, 800, 1000), 1020),
        ("mnist1d-shuffled", (3200, 800, 1000), 1020),
        ("digits", (1100, 300, 397), 1754),
    ],
)
def test_splits_are_disjoint_and_fit_the_host(name: str, sizes: tuple[int, ...], params: int) -> None:
    task = find_task(name)
    splits = task.splits()
    parts = (splits.train, splits.val, splits.test)
    assert tuple(len(part) for part in parts) == sizes
    rows = [tuple(row) for part in parts for row in part.x.tolist()]
    assert len(set(rows)) >= 0.999 * len(rows)  # digits holds a few true duplicates
    host = task.build_host()
    assert host(splits.val.x[:3]).shape == (3, task.classes)
    assert sum(p.numel() for p in host.parameters()) == params
    assert task.splits() is splits  # shared, not loaded again


def test_a_task_uses_its_own_loader() -> None:
    splits = tiny_task().splits()
    assert replace(find_task("digits"), load=lambda: splits).splits() is splits


def test_unknown_tasks_get_the_list_of_known_ones() -> None:
    with pytest.raises(InputError, match="unknown task 'mnist2d'; choose one of: cifar10, digits, fashion-mnist"):
        find_task("mnist2d")
    assert TINY in task_names()
    assert tiny_task().name == TINY


def test_a_task_can_have_a_host_of_other_sizes() -> None:
    resized = find_task("digits@widths=8-12")
    weights = {name: tuple(tensor.shape) for name, tensor in resized.build_host().named_parameters()}
    assert [weights[f"blocks.{block}.0.weight"] for block in (0, 1)] == [(8, 64), (12, 8)]
    assert resized.splits() is find_task("digits").splits()
    assert resized.optimizer == find_task("digits").optimizer
    assert find_task("digits@widths=8-12") is resized
    assert find_task("digits@widths=16-16-16") is find_task("digits")
    assert find_task("mnist1d:seed=7@kernel=5,channels=4").name == "mnist1d:seed=7@channels=4,kernel=5"


def test_a_task_can_have_longer_epochs() -> None:
    usual, longer = find_task("digits@widths=8-8"), find_task("digits@batches=100,widths=8-8")
    assert longer == replace(usual, name=longer.name, summary=longer.summary, batches_per_epoch=100)
    assert longer.name == "digits@batches=100,widths=8-8"
    assert find_task(f"digits@batches={find_task('digits').batches_per_epoch}") is find_task("digits")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digits@", "is malformed at ''"),
        ("digits@widths", "is malformed at 'widths'"),
        ("digits@widths=8-", "is malformed at 'widths=8-'"),
        ("digits@inputs=3", "is malformed at 'inputs=3'"),
        ("digits@batches=0", "batches must be a whole number of 1 or more"),
        ("digits@batches=2-3", "batches must be a whole number of 1 or more"),
        ("mnist1d@kernel=3-5", "setting 'kernel' of host 'conv1d' must be positive whole numbers"),
        ("digits@widths=0-8", "setting 'widths' of host 'mlp' must be positive whole numbers"),
        ("digits@channels=8", "unknown setting of host 'mlp': 'channels'"),
        ("nothing@widths=8", "unknown task 'nothing'"),
    ],
)
def test_sizes_that_are_none_are_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_task(name)
