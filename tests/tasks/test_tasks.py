"""Tasks: three disjoint splits, data that is made once and survives a cut file."""

import os
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from esper.leyline import InputError
from esper.tasks import find_task, task_names
from esper.tasks.files import Arrays, cached_arrays
from tests.worlds import TINY, tiny_task


def accept(arrays: Arrays) -> None:
    """Any content will do."""


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


def test_shuffled_series_are_the_same_series_with_positions_permuted() -> None:
    plain, shuffled = find_task("mnist1d").splits().test, find_task("mnist1d-shuffled").splits().test
    assert torch.equal(plain.y, shuffled.y)
    assert not torch.equal(plain.x, shuffled.x)
    torch.testing.assert_close(plain.x.sort(1).values, shuffled.x.sort(1).values)


def test_generating_data_leaves_global_random_states_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path))
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    find_task("mnist1d").load()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]  # noqa: NPY002
    assert find_task("mnist1d").data() == "generated, here"


def test_a_task_uses_its_own_loader() -> None:
    splits = tiny_task().splits()
    assert replace(find_task("digits"), load=lambda: splits).splits() is splits


def test_a_folder_that_cannot_hold_data_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_DATA", "/dev/null")
    with pytest.raises(InputError, match="set ESPER_DATA to a folder that can be written"):
        cached_arrays("some", ["x"], lambda: {"x": np.arange(2)}, accept)


def test_unknown_tasks_get_the_list_of_known_ones() -> None:
    with pytest.raises(InputError, match="unknown task 'mnist2d'; choose one of: cifar10, digits, fashion-mnist"):
        find_task("mnist2d")
    assert TINY in task_names()
    assert tiny_task().name == TINY


def test_cached_arrays_are_made_once_and_again_after_a_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path))
    made: list[int] = []

    def make() -> dict[str, np.ndarray]:
        made.append(1)
        return {"x": np.arange(5)}

    for _ in range(2):
        assert cached_arrays("some", ["x"], make, accept)["x"].tolist() == [0, 1, 2, 3, 4]
    assert len(made) == 1
    path = tmp_path / "some.npz"
    path.write_bytes(path.read_bytes()[:50])
    assert cached_arrays("some", ["x"], make, accept)["x"].tolist() == [0, 1, 2, 3, 4]
    assert len(made) == 2
    assert "made again" in caplog.text
    assert [entry.name for entry in tmp_path.iterdir()] == ["some.npz"]


def _kept_arrays(**changes: Any) -> Arrays:
    x = np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32)
    y = np.arange(50) % 10
    return {"x": x, "y": y, "x_test": x[:20], "y_test": y[:20], **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"x": np.full((50, 40), np.nan, np.float32)},
        {"x_test": np.full((20, 40), np.inf, np.float32)},
        {"x": np.zeros((50, 40))},
        {"x": np.zeros((50, 3), np.float32), "x_test": np.zeros((20, 3), np.float32)},
        {"x_test": np.zeros((20, 39), np.float32)},
        {"y": np.full(50, 10)},
        {"y": np.full(50, -1)},
        {"y": np.zeros(49, np.int64)},
        {"y": np.zeros(50, np.float32)},
        {"x": np.zeros((0, 40), np.float32), "y": np.zeros(0, np.int64)},
        {"x": np.array(None)},
    ],
)
def test_kept_data_that_cannot_have_been_made_is_made_again(
    changes: dict[str, Any], data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("esper.tasks.mnist1d._generate", lambda _: _kept_arrays())
    np.savez(data / "mnist1d.npz", **_kept_arrays(**changes))  # type: ignore[arg-type]
    assert len(find_task("mnist1d").load().test) == 20
    assert "mnist1d.npz cannot be read" in caplog.text
    caplog.clear()
    assert len(find_task("mnist1d").load().test) == 20
    assert caplog.text == ""


def test_a_kept_file_that_would_unpack_to_something_huge_is_not_read(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("esper.tasks.mnist1d._generate", lambda _: _kept_arrays())
    np.savez_compressed(data / "mnist1d.npz", **_kept_arrays())  # type: ignore[arg-type]
    find_task("mnist1d").load()
    assert "it is compressed" in caplog.text


def test_half_written_files_of_killed_processes_are_removed_and_young_ones_spared(data: Path) -> None:
    for name, age in ((".some.npz.a.part", 7200), (".some.npz.b.part", 10), (".other.npz.c.part", 7200)):
        (data / name).touch()
        os.utime(data / name, (time.time() - age,) * 2)
    cached_arrays("some", ["x"], lambda: {"x": np.arange(5)}, accept)
    assert sorted(path.name for path in data.iterdir()) == [".other.npz.c.part", ".some.npz.b.part", "some.npz"]
