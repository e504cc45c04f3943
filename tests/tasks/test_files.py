"""The data folder: arrays are made once and survive a cut file, and what is huge is refused."""

import gzip
import os
import time
from pathlib import Path

import numpy as np
import pytest

from esper.leyline import DamagedFileError, InputError
from esper.tasks.files import Arrays, cached_arrays, read_bytes


def accept(arrays: Arrays) -> None:
    """Any content will do."""


def test_a_folder_that_cannot_hold_data_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_DATA", "/dev/null")
    with pytest.raises(InputError, match="set ESPER_DATA to a folder that can be written"):
        cached_arrays("some", ["x"], lambda: {"x": np.arange(2)}, accept)


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


def test_half_written_files_of_killed_processes_are_removed_and_young_ones_spared(data: Path) -> None:
    for name, age in ((".some.npz.a.part", 7200), (".some.npz.b.part", 10), (".other.npz.c.part", 7200)):
        (data / name).touch()
        os.utime(data / name, (time.time() - age,) * 2)
    cached_arrays("some", ["x"], lambda: {"x": np.arange(5)}, accept)
    assert sorted(path.name for path in data.iterdir()) == [".other.npz.c.part", ".some.npz.b.part", "some.npz"]


def test_a_file_that_unpacks_to_something_huge_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.tasks.files.LARGEST", 1 << 20)
    (tmp_path / "x.gz").write_bytes(gzip.compress(bytes(2 << 20)))
    with pytest.raises(DamagedFileError, match="it holds more than 1 MB"):
        read_bytes(tmp_path / "x.gz")
