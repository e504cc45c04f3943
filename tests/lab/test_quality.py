"""The table of quality: its rows against what each of them is alone, its intervals against other arithmetic."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch.utils.flop_counter import FlopCounterMode

from esper.leyline import POINTS
from esper.tamiyo import Never, Planting, Schedule, make_controller, play, run_episodes
from esper.tasks import find_task
from esper.tolaria import Episode, EpisodeSettings
from esper_lab.quality import Meter, QualitySettings, Row, play_task
from esper_lab.quality_report import compare_rows, draw_quality
from tests.worlds import TINY, tiny_task

_SETTINGS = QualitySettings(("never", "schedule"), ("schedule",), (0.1, 0.001), seeds=2, seed=7, static=4)


def test_every_row_is_what_it_would_be_alone_at_every_price() -> None:
    table = play_task(TINY, _SETTINGS)
    assert set(table) == {"0.1", "0.001"}
    names = ["never", "schedule", "the same architecture from scratch", "widened to the same size"]
    assert list(table["0.1"]) == [*names, "a static network at random", "best of 4 static networks"]
    for price in _SETTINGS.prices:
        rows = table[str(price)]
        alone = run_episodes(tiny_task(), make_controller("schedule"), [7, 8], EpisodeSettings(price=price))
        assert rows["schedule"].objective == pytest.approx([POINTS * result.test_objective for result in alone])
        assert rows["never"].growth == 1.0
        assert rows["the same architecture from scratch"].growth == pytest.approx(rows["schedule"].growth)
        assert rows["widened to the same size"].growth >= rows["schedule"].growth
    # What is grown costs more to train than the host, and four networks about four times one.
    rows = table["0.1"]
    assert rows["never"].compute == 1.0
    assert rows["schedule"].compute > 1.0
    four, one = rows["best of 4 static networks"].compute, rows["a static network at random"].compute
    assert four == pytest.approx(4 * one)


def test_compute_is_what_torch_counts() -> None:
    task, plan, settings = find_task("mnist1d@batches=2,channels=4-8"), Schedule([Planting(1, 0, 6)]), EpisodeSettings()
    counted = []
    for controller in (Never(), plan):
        episode = Episode(task, 3, settings)
        with FlopCounterMode(display=False) as counter:
            play(episode, controller, 3)
        counted.append(counter.get_total_flops())
    meter = Meter(plan, task, settings)
    run_episodes(task, meter, [3], settings)
    assert meter.compute > 1.1
    # torch leaves out biases and what has no matrices.
    assert meter.compute == pytest.approx(counted[1] / counted[0], rel=0.1)


def test_static_networks_are_trained_once_and_pay_each_price() -> None:
    table = play_task(TINY, replace(_SETTINGS, same_size=False, static=1))
    dear, cheap = (table[str(price)]["a static network at random"] for price in _SETTINGS.prices)
    assert dear.accuracy == cheap.accuracy
    for price, row in ((0.1, dear), (0.001, cheap)):
        owed = [score - objective for score, objective in zip(row.accuracy, row.objective, strict=True)]
        assert owed == pytest.approx([POINTS * price * (row.growth - 1)] * 2)


def _rows(objectives: list[list[float]]) -> dict[str, Row]:
    return {f"task {number}": Row(tuple(row), tuple(row), 1.0, 1.0) for number, row in enumerate(objectives)}


def test_a_comparison_tells_means_and_how_often_the_subject_is_above() -> None:
    own, other = [[3.0, 5.0], [1.0, 2.0]], [[2.0, 4.0], [2.0, 2.0]]
    row = compare_rows({"other": _rows(other), "own": _rows(own)}, ["own"])["other"]
    assert row.objective == pytest.approx(2.5)
    apart = row.subjects["own"]
    assert apart.mean.value == pytest.approx(0.25)
    # Pairs of all runs of a task: 3 of 4 above in the first; in the second two are equal.
    assert apart.improvement == pytest.approx((3 / 4 + 1 / 4) / 2)
    assert apart.paired_improvement == pytest.approx((2 + 0.5) / 4)
    assert apart.tasks_above == 1


def test_intervals_are_wider_where_tasks_differ_than_where_seeds_do() -> None:
    dice = np.random.default_rng(0)
    noise = dice.normal(size=(8, 32))
    by_task = noise.mean(1, keepdims=True) * np.sqrt(32) + 0.1 * noise
    zeros = _rows(np.zeros((8, 32)).tolist())
    width = {}
    for name, values in (("seeds", noise), ("tasks", by_task)):
        bar = compare_rows({"never": zeros, "own": _rows(values.tolist())}, ["own"])["never"].subjects["own"].mean
        assert bar.low < bar.value < bar.high
        width[name] = bar.high - bar.low
    # The mean of 8 tasks of deviation 1 has a standard error of 0.35; that of 256 runs is far smaller.
    assert width["tasks"] == pytest.approx(4 * 0.35, rel=0.35)
    assert width["seeds"] < width["tasks"] / 3


def test_the_middle_half_forgets_outliers() -> None:
    own = [[0.0, 1.0, 1.0, 1000.0]]
    row = compare_rows({"never": _rows([[0.0] * 4]), "own": _rows(own)}, ["own"])["own"]
    assert row.gain.value == 1.0


def test_a_picture_is_drawn_of_every_price(tmp_path: Path) -> None:
    compared = compare_rows({"never": _rows([[1.0, 2.0]]), "own $": _rows([[2.0, 3.0]])}, ["own $"])
    draw_quality({"0.03": compared, "0.01": compared}, "own $", tmp_path / "quality.png")
    assert (tmp_path / "quality.png").stat().st_size > 10_000
