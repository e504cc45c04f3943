"""The README's examples run as printed."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), re.DOTALL)


def run(word: str) -> dict[str, Any]:
    """The names that the one example with `word` in it leaves behind."""
    (example,) = (block for block in BLOCKS if word in block)
    names: dict[str, Any] = {}
    exec(example, names)
    return names


def test_every_example_is_run_here() -> None:
    words = ("esper.Grower(", "kasmina import graft", "gymnasium.make(", "esper.make_env")
    assert all(any(word in block for word in words) for block in BLOCKS)


@pytest.mark.filterwarnings("ignore:left out of the export")
def test_three_lines_grow_a_model_within_its_budget(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    names = run("esper.Grower(")
    told = capsys.readouterr().out
    assert "germinated " in told
    assert " for good: it brings " in told
    grower, plain, x = names["grower"], names["plain"], names["x"]
    assert max(decision.added_params for decision in grower.history) <= 1_000
    assert sum(p.numel() for p in plain.parameters()) > sum(p.numel() for p in names["model"].parameters())
    assert float(names["accuracy"](plain)) > 0.8
    assert plain(x).shape == (len(x), 10)


def test_the_growing_example_does_what_its_comment_says() -> None:
    names = run("kasmina import graft")
    assert "+304 parameters" in "".join(BLOCKS)
    assert int(names["grown"].table.added_params) == 304


def test_the_gymnasium_example_grows_a_network() -> None:
    names = run("gymnasium.make(")
    assert np.isfinite(names["info"]["action_mask"]).all()
    assert names["truncated"] is True
    assert names["observations"].shape[0] == names["envs"].num_envs == 4


def test_the_environment_steps_many_hosts() -> None:
    names = run("esper.make_env")
    assert names["step"].rewards.shape == (4,)
