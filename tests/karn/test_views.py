"""What people look at: the live view shows the state, the picture is written."""

import io
from pathlib import Path

from PIL import Image
from rich.console import Console

from esper.karn import GrowthView, draw_growth, draw_learning
from esper.nissa import Hub, MemorySink
from esper.tamiyo import Planting, Schedule, play, run_episode
from esper.tolaria import Episode
from tests.worlds import tiny_task


def test_the_live_view_shows_epoch_accuracy_slots_and_parameters() -> None:
    screen = io.StringIO()
    with GrowthView(["grown"], Console(file=screen, width=120, force_terminal=True)) as view:
        episode = Episode(tiny_task(), 0)
        play(episode, Schedule([Planting(1, 4, 7)]), 0, lambda _: view.update("grown", episode))
    shown = screen.getvalue()
    for words in ("epoch  25 of 25", "accuracy", "parameters", "r0c4 (blocks.2.0)", "near_narrow", "fossilized"):
        assert words in shown


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    memory = MemorySink()
    run_episode(tiny_task(), Schedule([Planting(1, 0, 3)]), 0, hub=Hub([memory]))
    draw_growth({"grown": memory.events, "alone": memory.events}, "test", tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_learning_and_comparison_are_drawn_apart_and_together(tmp_path: Path) -> None:
    rounds = [
        {"round": n, "gain": {"digits": 0.01 * n}, "validation": {"digits": 0.5} if n == 3 else None} for n in (1, 2, 3)
    ]
    baselines = {"never": {"digits": 0.4}, "heuristic": {"digits": 0.45}}
    compared = {"digits": {"never": (0.0, 0.0, 0.0), "mine": (0.02, 0.01, 0.04)}}
    widths = []
    for name, history, rows in (("a", rounds, None), ("b", [], compared), ("c", rounds, compared)):
        draw_learning(tmp_path / f"{name}.png", history, baselines, rows)
        with Image.open(tmp_path / f"{name}.png") as picture:
            widths.append(picture.width)
    assert widths[0] == widths[1]
    assert widths[2] == 2 * widths[0]
