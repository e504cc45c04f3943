"""`esper train` as people type it: what a resumed run may be given, and what is printed."""

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from esper.api.training import _describe
from esper.cli import main
from esper.cli.main import _parse
from esper.cli.train import Train
from esper.simic.config import LearnerConfig, changed, preset
from esper.simic.training import RunFolder
from tests.worlds import TINY

Command = Callable[..., tuple[int, str]]
SIZES = ("--task", TINY, "--envs", "2", "--episode-length", "3", "--rounds", "1")
SETTINGS = (
    *("--world.executor", "loop", "--validation-episodes", "1"),
    *("--learner.lstm-hidden-dim", "16", "--teacher", "None"),
)


@pytest.fixture
def train(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `esper train`; gives its exit code and what it wrote to stderr."""

    def run(*arguments: str | Path) -> tuple[int, str]:
        with pytest.raises(SystemExit) as stop:
            main(["train", *map(str, arguments)])
        return int(stop.value.code or 0), capsys.readouterr().err

    return run


def test_a_run_says_in_one_line_what_it_is_about_to_do() -> None:
    config = preset("any-host")
    tasks = config.world.tasks
    line = f"{tasks[0]}, {tasks[1]}, {len(tasks) - 2} other tasks; 5 lessons of {8 * len(tasks)} episodes; seed 0"
    assert _describe(config, None, 0) == f"training: {line}"
    few = changed(config, {"world.tasks": tasks[:2], "rounds": 3})
    assert _describe(few, None, 1) == (
        f"training: {tasks[0]}, {tasks[1]}; 3 rounds of 16 episodes; seed 0; going on after round 1"
    )


def test_a_resumed_run_takes_more_rounds_and_says_where_it_goes_on(train: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert train("--out", out, *SIZES, *SETTINGS)[0] == 0
    before = out / "config.json"
    code, told = train("--out", out, "--resume", "--rounds", "2", "--workers", "1", "--telemetry", "minimal")
    assert code == 0
    assert "2 rounds of 2 episodes; seed 0; going on after round 1" in told
    assert "round 2/2" in told
    assert json.loads(before.read_text())["telemetry"]["level"] == "minimal"
    code, told = train("--out", out, "--resume")
    assert code == 0
    assert "all rounds are played" in told


def test_a_command_repeated_with_resume_goes_on(train: Command, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"world": {"tasks": [TINY]}, "reward": {"scale": 5.0}}))
    given = ("--out", tmp_path / "run", "--config", config, *SIZES[2:], *SETTINGS, "--reward.holding-cost", "0.1")
    assert train(*given)[0] == 0
    stored = RunFolder(tmp_path / "run").stored_config()
    assert train(*given, "--resume")[0] == 0
    assert RunFolder(tmp_path / "run").stored_config() == stored


def test_options_that_cannot_change_are_refused_in_one_line(train: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert train("--out", out, *SIZES, *SETTINGS)[0] == 0
    stored = RunFolder(out).config.read_bytes()
    for options, message in (
        (("--seed", "4"), "seed (stored 0, given 4)"),
        (("--task", "digits"), f"tasks (stored ['{TINY}'], given ['digits'])"),
        (("--learner.lr", "0.5", "--reward.scale", "1"), "lr (stored 0.002, given 0.5), reward.scale (stored 10.0"),
        (("--preset", TINY, "--envs", "3"), "envs (stored 2, given 3)"),
        (("--preset", "mnist1d"), "tasks (stored"),
    ):
        code, told = train("--out", out, "--resume", *options)
        assert code == 2
        assert message in told
        assert "leave them out" in told
        assert told.count("\n") == 1
    assert RunFolder(out).config.read_bytes() == stored


def test_a_refused_run_leaves_nothing_behind(train: Command, tmp_path: Path) -> None:
    for options in (("--device", "warp"), ("--sink", "pigeon")):
        code, told = train("--out", tmp_path / "run", *SIZES, *options, *SETTINGS)
        assert (code, told.count("\n")) == (2, 1)
        assert not (tmp_path / "run").exists()


def test_without_twins_nothing_is_said_about_them(train: Command, tmp_path: Path) -> None:
    code, told = train("--out", tmp_path / "run", *SIZES, *SETTINGS, "--world.no-twins")
    assert code == 0
    assert "nan" not in told
    assert "over twins" not in told


def test_a_short_run_is_profiled_in_its_last_round(train: Command, tmp_path: Path) -> None:
    assert train("--out", tmp_path / "run", *SIZES, "--profile", tmp_path / "traces", *SETTINGS)[0] == 0
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["round-000001.json"]


OTHER_VALUES = {
    "device": "cpu", "lstm_hidden_dim": "8", "lstm_layers": "2", "hidden_storage": "first", "compile_network": None,
    "lr": "0.5", "lr_schedule": "constant", "head_lr_scale": "op 2.0", "weight_decay": "0.1", "max_grad_norm": "9",
    "grad_clip_mode": "global", "gae_lambda": "0.5", "value_lambda": "0.5", "epochs": "2", "num_minibatches": "3",
    "clip_ratio": "0.7", "target_kl": "None", "entropy_coef": "0.3", "entropy_coef_min": "0.2", "entropy_decay": "0.1",
    "entropy_coef_per_head": "op 2.0 slot 0.5", "adaptive_entropy_floor": None, "value_coef": "3",
    "value_loss_type": "huber", "huber_delta": "3", "clip_value": None, "value_clip": "3", "scale_values": None,
    "value_memory": "3", "op_bias": "1 2 3 4", "feature_dim": "8", "feature_layers": "2", "input_norm": None,
    "head_dim": "8", "policy_gain": "0.5", "architecture": "pointing",
}  # fmt: skip
"""Another value than the default for each option of the learner; None for those that are switched by their flag."""


@pytest.mark.parametrize("name", [spec.name for spec in fields(LearnerConfig)])
def test_every_option_of_the_learner_has_a_flag(name: str) -> None:
    flag = name.replace("_", "-")
    if name in ("gamma", "horizon_is_terminal"):  # the reward has to agree
        words = {"gamma": ["0.9"], "horizon_is_terminal": []}[name]
        no = "" if words else "no-"
        given = [f"--{group}.{no}{flag}" for group in ("learner", "reward")]
        line = [word for option in given for word in (option, *words)]
    else:
        value, default = OTHER_VALUES[name], getattr(LearnerConfig(), name)
        line = [f"--learner.{'no-' if value is None and default else ''}{flag}", *(value or "").split()]
    command = _parse(["train", *line]).command
    assert isinstance(command, Train)
    changed = {spec.name for spec in fields(LearnerConfig)} - {
        spec.name
        for spec in fields(LearnerConfig)
        if getattr(command.config.learner, spec.name) == getattr(LearnerConfig(), spec.name)
    }
    assert changed == {name}
