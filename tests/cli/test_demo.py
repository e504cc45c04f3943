"""`esper demo` grows and leaves its results."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import run


def test_demo_grows_and_leaves_its_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = (
        "demo",
        "--task",
        "digits",
        "--epochs",
        "10",
        "--out",
        str(tmp_path / "run"),
        "--json",
        str(tmp_path / "n.json"),
    )
    assert run(*args) == 0
    shown = capsys.readouterr().out
    assert "test accuracy" in shown
    assert str(tmp_path / "run" / "growth.png") in shown
    made = {path.name for path in (tmp_path / "run").iterdir()}
    assert made == {"growth.png", "summary.json", "grown.jsonl", "alone.jsonl"}
    first = (tmp_path / "n.json").read_text()
    assert run(*args) == 0
    assert (tmp_path / "n.json").read_text() == first  # the same seed gives the same run
    runs = json.loads(first)["runs"]
    assert runs["left alone"]["added_params"] == 0
