"""The README's example runs as printed."""

import re
from pathlib import Path


def test_the_readme_example_does_what_its_comment_says() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    assert "+304 parameters" in example
    assert int(names["grown"].table.added_params) == 304  # type: ignore[attr-defined]
