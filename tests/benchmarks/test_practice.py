"""The practitioner's comparison runs, and its rows are what they are said to be."""

import math
from dataclasses import replace

import pytest
import torch
from benchmarks.practice import RIVAL, ROWS, Growth, difference, fresh, from_scratch, run_seed, size, table, widened
from benchmarks.practice_models import PROBLEMS, Data, Problem

from esper.leyline import Blend
from esper.tamiyo import Planting, Schedule

TABULAR = next(problem for problem in PROBLEMS if problem.name == "tabular")


def small(problem: Problem) -> Problem:
    data = problem.load()
    few = Data(*((x[:100], y[:100]) for x, y in (data.train, data.val, data.test)))
    return replace(problem, epochs=3, load=lambda: few)


def test_all_rows_are_trained_and_told() -> None:
    problem = small(TABULAR)
    runs = run_seed(problem, 0, {"controller": Schedule([Planting(1, 2, 6, Blend.INSTANT)])}, "never")
    plain, grown, wide, scratch, rival = runs
    assert [run.row for run in runs] == [*ROWS, RIVAL]
    assert rival.params == plain.params
    assert rival.test == pytest.approx(plain.test)
    assert grown.kept == ("far_wide in 4",)
    assert plain.params < grown.params == scratch.params <= wide.params
    assert all(0 <= run.test <= 1 and run.seconds > 0 for run in runs)
    told = table({problem: [*runs, *(replace(run, seed=1) for run in runs)]})
    assert told.splitlines()[-1].startswith(f"| tabular (accuracy, %) | {100 * plain.test:.1f}, 693, 1.00x |")
    gain = 100 * (grown.test - rival.test)
    assert told.splitlines()[-1].endswith(f"| {gain:.1f} ({gain:.1f} to {gain:.1f}) |")
    assert len({line.count("|") for line in told.splitlines()}) == 1


@pytest.mark.parametrize(
    "problem", [p for p in PROBLEMS if p.load.__name__ != "fashion_data" and p.name != "autoencoder"]
)
def test_widened_models_are_the_smallest_that_are_large_enough(problem: Problem) -> None:
    plain = size(fresh(problem, 0))
    assert size(widened(problem, 0, plain)) == plain
    assert plain < size(widened(problem, 0, plain + 1)) < 1.5 * plain


def test_what_was_grown_is_not_silent_from_scratch() -> None:
    model = from_scratch(TABULAR, 0, Growth(("2", "3", "4"), {"4": "far_wide"}))
    x = TABULAR.load().train[0][:8]
    assert not torch.equal(model(x), fresh(TABULAR, 0)(x))


def test_lower_losses_are_better() -> None:
    problem = replace(small(TABULAR), is_accuracy=False)
    runs = run_seed(problem, 0, {"controller": "never"})
    one = [replace(run, test=0.2 if run.row == "grown" else 0.5) for run in runs]
    mean, low, high = difference(problem, [*one, *(replace(run, seed=1) for run in one)], "grown", "widened")
    assert (mean, low, high) == pytest.approx((0.3, 0.3, 0.3))
    assert math.isnan(difference(problem, one, "grown", "widened")[1])
