"""`esper evaluate` of a controller that `esper train` has made."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import run


def test_training_and_evaluating_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, numbers = tmp_path / "run", tmp_path / "numbers.json"
    sizes = ["--rounds", "1", "--envs", "2", "--episode-length", "4", "--seed", "1"]
    settings = ["--set", "validation_episodes=1", "num_minibatches=1", "executor=loop"]
    assert run("train", "--task", "digits", "--out", str(out), *sizes, *settings) == 0
    told = capsys.readouterr().err
    for stage in ("measuring heuristic", "lesson 1 of 2: watching heuristic", "lesson 2 of 2", "round 1/1"):
        assert stage in told
    arguments = ["--controller", "never", str(out), "--task", "digits", "--episodes", "2", "--executor", "loop"]
    picture = tmp_path / "picture.png"
    assert run("evaluate", *arguments, "--json", str(numbers), "--picture", str(picture)) == 0
    assert str(picture) in "".join(capsys.readouterr().out.split())
    rows = json.loads(numbers.read_text())["evaluations"]
    assert [row["controller"] for row in rows] == ["never", str(out)]
    assert set(rows[0]["objective"]) == {"mean", "low", "high", "per_seed"}
    assert len(rows[1]["gain_over_never"]["per_seed"]) == 2


@pytest.mark.parametrize(
    "content", ["", '{"history": [{"rou', "[]", '{"history": [{"round": 1}]}', '{"history": 5}', "\x00"]
)
def test_a_damaged_summary_is_found_before_any_episode(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text(content)
    picture = ["--picture", str(tmp_path / "p.png")]
    assert run("evaluate", "--controller", str(tmp_path / "run"), *picture) == 2
    said = capsys.readouterr().err
    assert "summary.json" in said
    assert "resume the run" in said
    assert said.count("\n") == 1
