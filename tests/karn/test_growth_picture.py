"""The picture of a growth is written."""

from pathlib import Path

from esper.karn import draw_growth
from esper.nissa import Hub, MemorySink
from esper.tamiyo import Planting, Schedule, run_episode
from tests.worlds import tiny_task


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    memory = MemorySink()
    run_episode(tiny_task(), Schedule([Planting(1, 0, 3)]), 0, hub=Hub([memory]))
    draw_growth({"grown": memory.events, "alone": memory.events}, "test", tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
