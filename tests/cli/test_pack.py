"""`esper pack`: a controller in a file, which is taken wherever a controller is asked for."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import run
from tests.worlds import TINY

_TRAIN = ("--rounds", "1", "--envs", "2", "--episode-length", "8", "--validation-episodes", "1", "--teacher", "None")


def test_a_packed_controller_is_evaluated_as_its_run_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, file, numbers = tmp_path / "run", tmp_path / "mine.safetensors", tmp_path / "numbers.json"
    assert run("train", "--task", TINY, "--out", str(out), *_TRAIN, "--learner.architecture", "pointing") == 0
    assert run("pack", str(out), "--out", str(file)) == 0
    assert str(file) in capsys.readouterr().out.replace("\n", "")
    episodes = ("--task", TINY, "--episodes", "2", "--executor", "loop", "--json", str(numbers))
    assert run("evaluate", "--controller", str(out), str(file), *episodes) == 0
    own, packed = json.loads(numbers.read_text())["evaluations"]
    assert own["objective"] == packed["objective"]


def test_what_cannot_be_packed_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("pack", str(tmp_path / "nothing"), "--out", str(tmp_path / "c.safetensors")) == 2
    assert "is no run; name a folder of `esper train`" in capsys.readouterr().err
    assert run("pack", str(tmp_path), "--out", str(tmp_path / "c.bin")) == 2
    assert "--out must end in .safetensors" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
