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
