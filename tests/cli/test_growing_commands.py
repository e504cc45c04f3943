"""`esper train`, `evaluate` and `grow`, as people type them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from esper.cli import main
from esper.tasks import OptimizerSettings, find_task, registry
from tests.worlds import tiny_task


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return int(stop.value.code or 0)


def test_a_grown_network_loads_without_esper(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "grown.pt2"
    numbers = tmp_path / "numbers.json"
    assert (
        run(
            "grow",
            "--task",
            "digits",
            "--controller",
            "random",
            "--seed",
            "3",
            "--out",
            str(out),
            "--json",
            str(numbers),
        )
        == 0
    )
    history = json.loads(out.with_suffix(".json").read_text())
    result = json.loads(numbers.read_text())
    assert history["kept"] == result["kept"]
    assert history["kept"]
    assert history["events"][0]["type"] == "episode_started"
    test = find_task("digits").splits().test
    torch.save([test.x, test.y], tmp_path / "test.pt")
    script = (
        "import sys, torch; x, y = torch.load(sys.argv[2]); net = torch.export.load(sys.argv[1]).module(); "
        "print((net(x).argmax(1) == y).float().mean().item(), 'esper' in sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script, str(out), str(tmp_path / "test.pt")], capture_output=True, text=True, check=True
    )
    score, loaded = shown.stdout.split()
    assert float(score) == pytest.approx(result["test_score"], abs=1e-5)
    assert loaded == "False"


def test_growth_obeys_its_budget(tmp_path: Path) -> None:
    out = tmp_path / "small.pt2"
    assert run("grow", "--task", "digits", "--controller", "random", "--budget-params", "40", "--out", str(out)) == 0
    assert json.loads(out.with_suffix(".json").read_text())["added_params"] <= 40


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
    ("arguments", "message"),
    [
        (["train", "--set", "gamma=1.5"], "gamma must be in (0, 1]; got 1.5"),
        (["train", "--set", "speed=9"], "unknown config field 'speed'"),
        (["train", "--set", "reward.speed=9"], "unknown config field 'reward.speed'"),
        (["train", "--set", "reward.scale=-1"], "scale must be"),
        (["train", "--preset", "fast"], "unknown preset 'fast'; choose one of: pair, pair-long, quick, mnist1d"),
        (["train", "--preset", "quick", "--config", "c.json"], "give --preset or --config, not both"),
        (["train", "--set", "gamma"], "--set takes name=value"),
        (["train", "--task", "mnist9d"], "unknown task 'mnist9d'"),
        (["train", "--envs", "0"], "envs must be in [1, inf)"),
        (["train", "--resume"], "holds no run to resume"),
        (["train", "--config", "nowhere.json"], "No such file"),
        (["evaluate", "--controller", "nobody"], "unknown controller 'nobody'"),
        (["evaluate", "--task", "mnist9d"], "unknown task 'mnist9d'"),
        (["evaluate", "--episodes", "0"], "--episodes must be 1 or more"),
        (["evaluate", "--task"], "--task must name at least one task"),
        (["evaluate", "--executor", "fast"], "unknown executor 'fast'"),
        (["evaluate", "--picture", "p.foo"], "p.foo is no name for a picture; it must end in one of: .png, .svg"),
        (["evaluate", "--picture", "p"], "p is no name for a picture"),
        (["evaluate", "--picture", "p.png", "--json", "p.png"], "p.png is named for two results"),
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


def test_growing_that_the_governor_gives_up_exits_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hopeless = tiny_task(name="hopeless", optimizer=OptimizerSettings("sgd", lr=1e30))
    monkeypatch.setitem(registry._REGISTRY, "hopeless", hopeless)
    monkeypatch.chdir(tmp_path)
    assert run("grow", "--task", "hopeless", "--controller", "never", "--out", "g.pt2") == 1
    said = capsys.readouterr().err
    assert said.startswith("esper: training on hopeless failed 3 times and was given up at epoch 3 of 25 (last: ")
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())
    assert run("demo", "--task", "hopeless", "--controller", "never", "--out", "demo") == 1
    said = capsys.readouterr().err
    assert said.startswith("esper: grown by never: training on hopeless failed 3 times")
    assert said.count("\n") == 1
