"""`esper bench` writes its numbers."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import run
from tests.worlds import TINY


def test_bench_growth_and_oracle_write_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = str(tmp_path / "out.json")
    assert (
        run("bench", "growth", "--tasks", TINY, "--controllers", "never", "schedule", "--seeds", "2", "--json", out)
        == 0
    )
    never = json.loads(Path(out).read_text())[TINY]["never"]
    assert set(never) == {"test_accuracy", "objective", "parameters"}
    assert set(never["objective"]) == {"mean", "low", "high", "per_seed"}
    assert run("bench", "oracle", "--tasks", TINY, "--candidates", "3", "--report-seeds", "2", "--json", out) == 0
    assert "schedule" in json.loads(Path(out).read_text())


def test_bench_speed_reports_what_scripts_rely_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "speed", "--quick", "--json", str(tmp_path / "out.json")) == 0
    report = json.loads((tmp_path / "out.json").read_text())
    for host in ("mlp", "conv1d", "conv2d"):
        for contender in ("bare", "loop", "stacked"):
            assert report["host_steps_per_second"][host][contender]["2"] > 0
    assert 0 < report["bookkeeping_share"] < 1
    assert 0 < report["counterfactual_share"] < 1
    assert report["growth"]["hosts"]["2"]["peak_mb"] > 0
    assert 0 < report["workers"]["4"]["ready_cpu_s"] < 60
    assert report["workers"]["4"]["speedup"] > 0
    assert report["ppo_update"]["ours_s"]
    assert "host steps per second" in capsys.readouterr().out


def test_bench_quality_compares_and_goes_on_where_it_was_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, picture = tmp_path / "quality.json", tmp_path / "quality.png"
    given = (
        "bench",
        "quality",
        "--controllers",
        "never",
        "schedule",
        "--seeds",
        "2",
        "--static",
        "4",
        "--workers",
        "1",
    )
    files = ("--json", str(out), "--picture", str(picture))
    digits = "digits@batches=1,widths=6-6"
    assert run(*given, "--tasks", digits, "ucr:nothing", "--prices", "0.1", *files) == 2
    assert not out.exists()
    assert run(*given, "--tasks", digits, "--prices", "0.1", *files) == 0
    assert "price 0.1: 1 tasks, 2 seeds each" in capsys.readouterr().out
    assert picture.exists()
    told = json.loads(out.read_text())
    rows = told["tasks"][digits]["0.1"]
    assert list(rows)[:2] == ["never", "schedule"]
    assert told["summary"]["0.1"]["never"]["subjects"]["schedule"]["mean"]["value"] == pytest.approx(
        sum(a - b for a, b in zip(rows["schedule"]["objective"], rows["never"]["objective"], strict=True)) / 2
    )
    # What is in the file is not played again: a number that no episode gives stays.
    rows["never"]["accuracy"] = [12.5, 12.5]
    out.write_text(json.dumps(told))
    assert run(*given, "--tasks", digits, "--prices", "0.1", *files) == 0
    assert json.loads(out.read_text())["tasks"][digits]["0.1"]["never"]["accuracy"] == [12.5, 12.5]
    capsys.readouterr()
    assert run(*given, "--tasks", digits, "--prices", "0.2", *files) == 2
    assert "holds a comparison with other settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--controllers", "nobody", "unknown controller 'nobody'"),
        ("--subjects", "shipped", "unknown subject 'shipped'; choose one of: never, random"),
        ("--tasks", "nothing", "unknown task 'nothing'"),
        ("--prices", "-1", "price must be a number of 0 or more"),
        ("--seeds", "0", "--seeds must be 1 or more"),
        ("--static", "-1", "--static must be 0 or more"),
        ("--picture", "quality.txt", "is no name for a picture"),
    ],
)
def test_bench_quality_refuses_bad_input(
    option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("bench", "quality", option, value) == 2
    assert message in capsys.readouterr().err
