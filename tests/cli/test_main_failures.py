"""Whatever goes wrong is one sentence and an exit code; a traceback is shown only to those who ask for it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from esper.cli.main import exit_code_of
from esper.leyline import EsperError, InputError
from tests.cli.commands import run


def shell(command: str, *, unbuffered: str = "") -> tuple[list[int], str, str]:
    """Run a shell line in which `esper` is the command; the exit codes of its pipe, and what was said."""
    prefix = 'esper() { "$PYTHON" -c "from esper.cli import main; main()" "$@"; }; '
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONUNBUFFERED": unbuffered}
    line = prefix + command + '; echo "codes ${PIPESTATUS[*]}"'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment, check=False)
    *shown, codes = done.stdout.splitlines()
    return [int(code) for code in codes.split()[1:]], "\n".join(shown), done.stderr


def raising(error: Exception) -> Callable[[], bool]:
    def work() -> bool:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("--x must be 1; got 2"), 2, "--x must be 1; got 2"),
        (EsperError("it did not work"), 1, "it did not work"),
        (PermissionError(13, "Permission denied", "/x/y"), 1, "/x/y cannot be read or written (Permission denied)"),
        (MemoryError(), 1, "out of memory (no details)"),
        (RuntimeError("[enforce fail] can't allocate memory: 99 bytes"), 1, "out of memory"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), 1, "out of memory"),
        (BrokenPipeError(32, "Broken pipe"), 1, "the output cannot be read or written (Broken pipe)"),
        (RecursionError("maximum recursion depth"), 1, "internal error, RecursionError: maximum recursion depth"),
        (KeyError("gain"), 1, "internal error, KeyError: 'gain'; please report it"),
        (InputError("a\nb\x1b[31m"), 2, "a\\nb\\x1b[31m"),
    ],
)
def test_every_error_is_one_sentence(
    error: Exception, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(raising(error), debug=False) == code
    shown = capsys.readouterr().err
    assert shown.startswith(f"esper: {said}")
    assert shown.count("\n") == 1


def test_a_signal_while_the_line_is_parsed_is_no_bad_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tyro.cli", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    assert run("tasks") == 143
    assert capsys.readouterr().err == ""


def test_a_sentence_about_something_huge_stays_short(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code_of(raising(InputError("got " + "9" * 100_000)), debug=False)
    assert len(capsys.readouterr().err) < 2100


@pytest.mark.parametrize("place", [0, 1, 2, 4])
def test_debug_shows_the_traceback_wherever_it_stands(place: int, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["blueprints", "--width", "0", "--positions", "1"]
    assert run(*words) == 2
    assert "Traceback" not in capsys.readouterr().err
    words.insert({0: 0, 1: 1, 2: 3, 4: 5}[place], "--debug")
    assert run(*words) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert shown.endswith("\nesper: --width must be 1 or more; got 0\n")


@pytest.mark.parametrize("command", [(), ("sql",), ("bench", "oracle"), ("data", "get"), ("train",)])
def test_every_help_tells_of_debug(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*command, "--help") == 0
    assert "--debug" in capsys.readouterr().out


@pytest.fixture
def log(tmp_path: Path) -> Path:
    event = {"v": 1, "type": "run_started", "severity": "INFO", "timestamp": 1.0, "round": None, "payload": {}}
    (tmp_path / "events.jsonl").write_text((json.dumps(event) + "\n") * 3_000)
    return tmp_path


@pytest.mark.parametrize(("form", "unbuffered"), [("csv", ""), ("csv", "1"), ("table", "")])
def test_a_reader_that_leaves_early_ends_a_query_quietly(form: str, unbuffered: str, log: Path) -> None:
    line = f"esper sql '{log}' 'select * from events' --format {form} | head -1"
    (code, _), shown, said = shell(line, unbuffered=unbuffered)
    assert code == 1
    assert shown.count("\n") == 0
    assert said == ""


def test_output_that_cannot_be_written_is_one_sentence(log: Path) -> None:
    (code,), _, said = shell(f"esper sql '{log}' 'select 1' --format csv > /dev/full")
    assert code == 1
    assert said == "esper: the output cannot be read or written (No space left on device)\n"
    (code,), _, said = shell(f"esper sql '{log}' 'select 1' --format csv >&-")
    assert (code, said) == (0, "")


def test_a_result_file_that_turns_out_full_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("blueprints", "--json", "/dev/full") == 1
    assert capsys.readouterr().err == (
        "esper: /dev/full cannot be written (No space left on device); nothing of it was kept\n"
    )


def test_too_little_memory_is_one_sentence() -> None:
    (code,), _, said = shell("ulimit -v 400000; esper tasks")
    assert code == 1
    assert said.startswith("esper: out of memory")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("9" * 400, "does not fit into 64 bits"),
        ("[" * 5000 + "]" * 5000, "is nested more than 100 levels deep"),
        ("[1, 2", "is not JSON"),
        ('{"a": ' * 300 + "1" + "}" * 300, "is nested more than 100 levels deep"),
    ],
)
def test_absurd_json_is_refused_in_a_config_and_absurd_numbers_on_the_line(
    value: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"rounds": ' + value + "}")
    for words, why in ((("--config", str(tmp_path / "config.json")), reason), (("--rounds", value), "rounds")):
        assert run("train", *words, "--out", str(tmp_path / "run")) == 2
        said = capsys.readouterr().err
        assert why in said
        assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--envs", "9" * 400),
        ("train", "--rounds", "9" * 400),
        ("train", "--reward.scale", "1e999"),
        ("evaluate", "--episodes", "9" * 400),
        ("evaluate", "--seed", str(2**63 - 1)),
        ("evaluate", "--budget-params", str(2**70)),
        ("grow", "--budget-params", "9" * 400),
        ("grow", "--price", "nan"),
        ("blueprints", "--width", "9" * 30),
        ("bench", "oracle", "--candidates", "9" * 30),
    ],
)
def test_absurd_numbers_are_bad_input(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())
