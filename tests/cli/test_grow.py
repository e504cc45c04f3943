"""`esper grow`: a plain network within its budget, or one sentence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from esper.tasks import OptimizerSettings, find_task, registry
from tests.cli.commands import run
from tests.worlds import tiny_task


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
