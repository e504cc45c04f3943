"""What the rows of `quality.py` say over all tasks: means, intervals, and how often one is above another.

Intervals are 95 %, by a bootstrap over tasks and then over the seeds of each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table as Shown

from esper.karn.pictures import plain_label, save_picture
from esper_lab.quality import Row

_DRAWS = 10_000
_AT_ONCE = 500
"""Draws in a batch, for memory."""
Values = NDArray[np.float64]
"""`[tasks, seeds]`."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value, and where it lies with 95 %."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


@dataclass(frozen=True, slots=True)
class Difference:
    """A subject minus a row, over all tasks."""

    mean: Interval
    improvement: float
    """Probability that a run of the subject is above one of the row, in the mean over tasks."""
    paired_improvement: float
    """How often it is above from the same seed."""
    tasks_above: int
    """On how many tasks it is above in the mean."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row over all tasks, and each subject minus this row."""

    objective: float
    gain: Interval
    """Interquartile mean of the objective minus that of the first row, over all tasks and seeds."""
    subjects: dict[str, Difference]
    accuracy: float
    growth: float
    compute: float


def compare_rows(rows: Mapping[str, Mapping[str, Row]], subjects: Sequence[str]) -> dict[str, Comparison]:
    """`rows` by name and task; the first is what gains are taken to."""
    base = _objectives(next(iter(rows.values())))
    compared = {}
    for name, by_task in rows.items():
        objectives = _objectives(by_task)
        compared[name] = Comparison(
            float(objectives.mean()),
            _bootstrap(objectives - base, interquartile=True),
            {subject: _difference(_objectives(rows[subject]), objectives) for subject in subjects if subject != name},
            fmean(fmean(row.accuracy) for row in by_task.values()),
            fmean(row.growth for row in by_task.values()),
            fmean(row.compute for row in by_task.values()),
        )
    return compared


def _difference(ours: Values, theirs: Values) -> Difference:
    apart = ours - theirs
    return Difference(
        _bootstrap(apart),
        _share_above(ours[:, :, None] - theirs[:, None, :]),
        _share_above(apart),
        int((apart.mean(1) > 0).sum()),
    )


def _share_above(differences: Values) -> float:
    """How many are above 0; those that are 0 count half."""
    return float(((differences > 0) + 0.5 * (differences == 0)).mean())


def _objectives(by_task: Mapping[str, Row]) -> Values:
    return np.array([row.objective for row in by_task.values()])


def _bootstrap(values: Values, *, interquartile: bool = False) -> Interval:
    dice = np.random.default_rng(0)
    tasks, seeds = values.shape
    drawn = []
    for _ in range(_DRAWS // _AT_ONCE):
        rows = dice.integers(tasks, size=(_AT_ONCE, tasks, 1))
        columns = dice.integers(seeds, size=(_AT_ONCE, tasks, seeds))
        drawn.append(_mean(values[rows, columns].reshape(_AT_ONCE, -1), interquartile=interquartile))
    low, high = np.quantile(np.concatenate(drawn), (0.025, 0.975))
    return Interval(float(_mean(values.reshape(1, -1), interquartile=interquartile)[0]), float(low), float(high))


def _mean(values: Values, *, interquartile: bool) -> Values:
    """Of each row; `interquartile`, of its middle half."""
    if interquartile:
        count = values.shape[1]
        values = np.sort(values, 1)[:, count // 4 : count - count // 4]
    means: Values = values.mean(1)
    return means


def print_comparison(title: str, compared: Mapping[str, Comparison], subjects: Sequence[str], console: Console) -> None:
    """A table; beside each difference, how probably the subject is above: any run, and one from the same seed."""
    above = (f"{subject} is above by" for subject in subjects)
    columns = ("", "objective", "middle half of its gains", *above, "accuracy, %", "size", "compute")
    table = Shown(*columns, title=title, title_justify="left", box=box.SIMPLE)
    for name, row in compared.items():
        differences = (_tell(row.subjects[subject]) if subject in row.subjects else "" for subject in subjects)
        sizes = (f"{row.accuracy:.1f}", f"{row.growth:.2f}x", f"{row.compute:.2f}x")
        table.add_row(name, f"{row.objective:.1f}", str(row.gain), *differences, *sizes)
    console.print(table)


def _tell(row: Difference) -> str:
    odds = f"p {row.improvement:.2f}, paired {row.paired_improvement:.2f}"
    return f"{row.mean}\n{odds}, on {row.tasks_above} tasks"


def as_data(compared: Mapping[str, Comparison]) -> dict[str, Any]:
    """For JSON."""
    return {name: asdict(row) for name, row in compared.items()}


def draw_quality(compared: Mapping[str, Mapping[str, Comparison]], subject: str, path: Path) -> None:
    """Per price, the subject minus every row, and accuracy beside size."""
    figure = Figure(figsize=(13, 1.5 + 4.5 * len(compared)), layout="constrained")
    panels = figure.subplots(len(compared), 2, squeeze=False)
    for (price, rows), (differences, frontier) in zip(compared.items(), panels, strict=True):
        others = {name: row for name, row in rows.items() if name != subject}
        for place, row in enumerate(others.values()):
            bar = row.subjects[subject].mean
            clear = "#1b7f4d" if bar.low > 0 else "#b5651d" if bar.high < 0 else "#8a8f98"
            errors = [[bar.value - bar.low], [bar.high - bar.value]]
            differences.errorbar(bar.value, place, xerr=errors, fmt="o", capsize=4, color=clear)
        differences.axvline(0, color="black", linewidth=0.8)
        differences.set_yticks(range(len(others)), [plain_label(name) for name in others])
        differences.set_ylim(len(others) - 0.5, -0.5)
        differences.set_xlabel(f"objective of {plain_label(subject)} minus that of each row, points (95 % interval)")
        differences.set_title(f"Price {price}: same tasks and seeds, test split")
        differences.grid(alpha=0.3, axis="x")
        for name, row in rows.items():
            own = name == subject
            frontier.plot(row.growth, row.accuracy, "*" if own else "o", color="#1b7f4d" if own else "#8a8f98")
            frontier.annotate(
                plain_label(name), (row.growth, row.accuracy), (5, 4), textcoords="offset points", fontsize=7
            )
        frontier.margins(0.15)
        frontier.set_xlabel("parameters / those of the host")
        frontier.set_ylabel("test accuracy, %")
        frontier.set_title("Accuracy and size, mean over tasks")
        frontier.grid(alpha=0.3)
    save_picture(figure, path)
