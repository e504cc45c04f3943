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
