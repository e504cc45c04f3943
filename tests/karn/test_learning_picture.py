"""The picture of learning: rounds, a comparison, or both."""

from pathlib import Path

from PIL import Image

from esper.karn import draw_learning


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
