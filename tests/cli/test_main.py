"""The command line as people and scripts meet it."""

import subprocess
import sys
from pathlib import Path

import pytest

from esper.cli.main import in_one_sentence
from tests.cli.commands import run


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
        (("sql", "runs/mine"), 'missing from esper sql: STR SQL, such as "select * from anomalies"'),
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


def test_the_installed_command_runs() -> None:
    command = Path(sys.executable).with_name("esper")
    done = subprocess.run([command, "blueprints", "--family", "conv1d"], capture_output=True, text=True, check=True)
    assert "mixing" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--learner.gamma", "1.5"], "esper: learner.gamma must be in (0, 1]; got 1.5"),
        (["train", "--speed", "9"], "unrecognized options: --speed"),
        (["train", "--reward.scale", "-1"], "scale must be"),
        (["train", "--learner.entropy-coef-per-head", "size", "2"], "unknown head in learner.entropy_coef_per_head"),
        (["train", "--preset", "fast"], "unknown preset 'fast'; choose one of: any-host, pair, pair-long, quick"),
        (["train", "--preset", "quick", "--config", "c.json"], "give --preset or --config, not both"),
        (["train", "--task", "mnist9d"], "unknown task 'mnist9d'"),
        (["train", "--envs", "0"], "envs must be in [1, inf)"),
        (["train", "--resume"], "holds no run to resume"),
        (["train", "--config", "nowhere.json"], "No such file"),
        (["evaluate", "--controller", "nobody"], "unknown controller 'nobody'"),
        (["evaluate", "--task", "mnist9d"], "unknown task 'mnist9d'"),
        (["evaluate", "--episodes", "0"], "--episodes must be 1 or more"),
        (["evaluate", "--task"], "--task needs at least one name"),
        (["evaluate", "--executor", "fast"], "unknown executor 'fast'"),
        (["evaluate", "--picture", "p.foo"], "p.foo is no name for a picture; it must end in one of: .png, .svg"),
        (["evaluate", "--picture", "p"], "p is no name for a picture"),
        (["evaluate", "--picture", "p.png", "--json", "p.png"], "p.png is given for two results"),
        (["evaluate", "--picture", "nowhere/p.png"], "nowhere/p.png cannot be written"),
        (["grow", "--out", "/"], "--out must name a file"),
        (["grow", "--budget-params", "-1"], "--budget-params must be 0 or more"),
        (["grow", "--out", "grown.json"], "must not end in .json"),
        (["grow", "--controller", "nobody"], "unknown controller 'nobody'"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


_FRAMED = """\x1b[31m╭─ Unrecognized options ──╮\x1b[0m
│ Unrecognized options: a │
│ b.                      │
│ ─────────────────────── │
│ Perhaps you meant:      │
│     --task STR          │
│         A task.         │
│ ─────────────────────── │
│ For full helptext, run  │
│ esper --help            │
╰─────────────────────────╯
"""
_PLAIN = """ Unrecognized options
 ------------------------
  Unrecognized options: a
  b.
 ------------------------
  Perhaps you meant:
      --task STR
          A task.
 ------------------------
  For full helptext, run
  esper --help
"""


@pytest.mark.parametrize("complaint", [_FRAMED, _PLAIN])
def test_a_frame_becomes_one_sentence(complaint: str) -> None:
    assert in_one_sentence(complaint) == "unrecognized options: a b; perhaps you meant --task; run esper --help"


def test_what_is_drawn_otherwise_is_told_as_it_is() -> None:
    assert in_one_sentence("usage: x\n  error: y\n") == "usage: x error: y"
    assert in_one_sentence("") == ""
