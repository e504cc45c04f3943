"""The README's examples run as printed."""

import re
from pathlib import Path
from typing import Any

import numpy as np

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), re.DOTALL)


def run(word: str) -> dict[str, Any]:
    """The names that the one example with `word` in it leaves behind."""
    (example,) = (block for block in BLOCKS if word in block)
    names: dict[str, Any] = {}
    exec(example, names)
    return names


def test_every_example_is_run_here() -> None:
    assert all(any(word in block for word in ("graft(", "gymnasium.make(", "esper.make_env")) for block in BLOCKS)


def test_the_growing_example_does_what_its_comment_says() -> None:
    names = run("graft(")
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
