"""`esper search` as a user runs it."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import run

_SMALL = (
    "--task", "digits", "--episodes", "32", "--final-seeds", "4", "--epochs", "9", "--batches-per-epoch", "1",
    "--price", "0.03",
)  # fmt: skip


def test_it_prints_and_writes_the_best_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tmp_path / "out" / "found.json"  # in a folder that the command makes
    assert run("search", *_SMALL, "--out", str(tmp_path / "out"), "--json", str(found)) == 0
    (row,) = json.loads(found.read_text())["tasks"]
    (finding,) = row["findings"]
    assert row["task"] == "digits"
    assert finding["price"] == 0.03
    shown = capsys.readouterr().out
    assert all(part.split(" in ")[0] in shown for part in finding["described"].split("; "))
    assert f"+{finding['added_params']:,}" in shown
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".search", ".json"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--task", "nothing"), "unknown task 'nothing'"),
        (("--price", "0"), "prices must be numbers above 0"),
        (("--workers", "0"), "--workers must be 1 or more"),
        (("--executor", "fast"), "unknown executor 'fast'"),
        (("--seed", "-1"), "--seed must be 0 or more"),
        (("--seed", "1000001"), "--seed must be at most 1,000,000"),
        (("--episodes", "0"), "episodes must be 1 or more"),
        (("--budget-params", "-1"), "--budget-params must be 0 or more"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert run("search", *arguments, "--out", str(tmp_path / "out")) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
