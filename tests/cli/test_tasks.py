"""`esper tasks`: what is there."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import run


def test_tasks_lists_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("esper.tasks.ucr._folder", lambda: None)
    assert run("tasks", "--json", str(tmp_path / "out.json")) == 0
    tasks = {task["name"]: task for task in json.loads((tmp_path / "out.json").read_text())["tasks"]}
    assert tasks["digits"]["data"] == "bundled"
    shown = capsys.readouterr().out
    assert "mnist1d:<key=value,...>" in shown
    assert "missing: pip install 'esper[ucr]'" in shown
