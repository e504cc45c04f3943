"""The command line as people and scripts meet it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from esper.cli import main


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(args)
    return int(stop.value.code or 0)


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    assert "blueprints" in shown
    assert "doctor" in shown


@pytest.mark.parametrize("args", [("fly",), ("blueprints", "--family", "conv3d"), ("doctor", "--deep")])
def test_unknown_words_exit_with_two(args: tuple[str, ...]) -> None:
    assert run(*args) == 2


def test_bad_values_get_one_line_and_exit_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("blueprints", "--width", "0") == 2
    assert capsys.readouterr().err == "esper: --width must be 1 or more; got 0\n"


def test_a_result_file_that_cannot_be_written_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("blueprints", "--json", str(tmp_path / "missing" / "out.json")) == 2
    assert run("doctor", "--json", str(tmp_path)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 2


def test_blueprints_prices_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("blueprints", "--width", "12", "--positions", "19", "--json", str(tmp_path / "out.json")) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["blueprints"]
    assert len(rows) == 15
    prices = {(row["family"], row["name"]): row["params"] for row in rows}
    assert prices["conv1d", "heavy"] == 912
    assert "channel_attention" in capsys.readouterr().out


def test_blueprints_shows_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("blueprints", "--family", "features", "--positions", "1") == 0
    assert "does not fit" in capsys.readouterr().out


def test_doctor_finds_this_machine_ready(tmp_path: Path) -> None:
    assert run("doctor", "--json", str(tmp_path / "out.json")) == 0
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["ready"] is True
    assert {"Python", "torch", "growing", "free disk"} <= {check["what"] for check in report["checks"]}


def test_the_installed_command_runs() -> None:
    command = Path(sys.executable).with_name("esper")
    done = subprocess.run([command, "blueprints", "--family", "conv1d"], capture_output=True, text=True, check=True)
    assert "mixing" in done.stdout
