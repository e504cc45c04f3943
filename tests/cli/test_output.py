"""Result files: refused before the work if they could not be written after it, and then written whole."""

import json
import os
import stat
from pathlib import Path

import pytest

from esper.cli import main
from esper.cli.output import check_writable, write_json
from esper.leyline import EsperError, InputError


def test_checking_a_file_leaves_everything_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("kept")
    (tmp_path / "link").symlink_to("old")
    (tmp_path / "dangling").symlink_to("not yet")
    before = sorted(tmp_path.iterdir())
    check_writable(tmp_path / "new", tmp_path / "old", tmp_path / "dangling", None)
    check_writable(tmp_path / "link")
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "old").read_text() == "kept"


@pytest.mark.parametrize("name", ["missing/x", ".", "old/x", "x" * 300, "loop", "nul\0"])
def test_a_file_that_could_not_be_written_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match=r"cannot be written \(.+\); name a file in an existing folder"):
        check_writable(tmp_path / name)


def test_two_results_need_two_files(tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to("same")
    with pytest.raises(InputError, match="is given for two results"):
        check_writable(tmp_path / "same", None, tmp_path / "other")


def test_a_pipe_is_not_opened_before_there_is_something_to_write(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    check_writable(tmp_path / "pipe")  # opening it would wait for a reader
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_link_to_a_result_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    write_json(tmp_path / "link", {"a": 1})
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "target").read_text()) == {"a": 1}
    write_json(tmp_path / ("x" * 250), {})  # as long as a name may be


def test_a_failed_write_says_so_and_keeps_nothing() -> None:
    with pytest.raises(EsperError, match=r"/dev/full cannot be written \(No space left on device\)"):
        write_json(Path("/dev/full"), {})


@pytest.mark.parametrize("command", [("blueprints",), ("tasks",), ("doctor",), ("data", "list")])
def test_names_with_brackets_are_no_markup(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path / "[/data]"))
    with pytest.raises(SystemExit) as stop:
        main([*command, "--json", str(tmp_path / "[red].json")])
    assert stop.value.code == 0
    assert (tmp_path / "[red].json").exists()
    assert capsys.readouterr().err == ""
