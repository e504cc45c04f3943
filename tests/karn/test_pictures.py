"""Pictures are written whole, in the kinds that are promised, whatever names they show."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from esper.karn import check_picture, draw_growth, draw_learning
from esper.karn.pictures import PICTURE_SUFFIXES, save_picture
from esper.leyline import InputError
from esper.nissa import Hub, MemorySink
from esper.tamiyo import Planting, Schedule, run_episode
from tests.worlds import tiny_task


@pytest.mark.parametrize("suffix", PICTURE_SUFFIXES)
def test_every_kind_that_is_promised_can_be_drawn(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"p{suffix}"
    check_picture(path)
    save_picture(Figure(), path)
    assert path.stat().st_size > 0


@pytest.mark.parametrize("name", ["p.foo", "p", "p.txt", ".png", "p.pgf"])
def test_other_kinds_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="is no name for a picture"):
        check_picture(Path(name))


def test_a_name_with_dollars_is_no_formula(tmp_path: Path) -> None:
    interval = (0.0, -0.1, 0.1)
    draw_learning(tmp_path / "p.png", compared={r"t$\x$": {"never": interval, r"$\frac$": interval}}, yardstick="never")
    assert (tmp_path / "p.png").exists()


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


def test_rounds_of_a_curriculum_may_have_other_tasks(tmp_path: Path) -> None:
    history = [
        {"round": 1, "gain": {"easy": 0.1}, "validation": None},
        {"round": 2, "gain": {"hard": 0.2}, "validation": {"hard": 0.5}},
    ]
    draw_learning(tmp_path / "p.png", history, {"never": {"hard": 0.4}, "heuristic": {}})
    assert (tmp_path / "p.png").exists()
