"""Files are replaced whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from esper.leyline import remove_partial_files, write_atomically


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_new_file_has_the_permissions_that_open_would_give_it(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write_atomically(tmp_path / "atomic", b"")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".round-1.pt.abc.part", "round-1.pt", ".other.xyz.part", "mine.part"):
        (tmp_path / name).touch()
    remove_partial_files(tmp_path, "round-")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.xyz.part", "mine.part", "round-1.pt"]
