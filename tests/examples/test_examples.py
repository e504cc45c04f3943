"""Every example runs as shipped."""

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
NEED_EXTRAS = {"maskable_ppo"}
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path.stem not in NEED_EXTRAS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.slow
def test_maskable_ppo_trains_on_the_world_unchanged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sb3_contrib", reason="needs the extra `peers`")
    monkeypatch.setattr(sys, "argv", ["maskable_ppo.py", "--steps", "150", "--episode-length", "8"])
    runpy.run_path(str(FOLDER / "maskable_ppo.py"), run_name="__main__")
    assert "objective of 5 new episodes" in capsys.readouterr().out
