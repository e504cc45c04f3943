"""The README's examples run as printed."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_runs(example: str) -> None:
    exec(example, {})


def test_the_first_example_does_what_its_comment_says() -> None:
    names: dict[str, object] = {}
    exec(EXAMPLES[0], names)
    assert "+304 parameters" in EXAMPLES[0]
    assert int(names["grown"].table.added_params) == 304  # type: ignore[attr-defined]
