"""The picture of a controller that learns: its gain over rounds, and how it compares in the end."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from esper.karn.pictures import plain_label, save_picture
from esper.leyline import POINTS, DamagedFileError

_COLOURS = ("#1b7f4d", "#3465a4", "#b5651d", "#8a4f9e", "#8a8f98")
_WINDOW = 5
Interval = tuple[float, float, float]
"""Mean, lower and upper end."""


def draw_learning(
    path: Path,
    history: Sequence[Mapping[str, Any]] = (),
    baselines: Mapping[str, Mapping[str, float]] | None = None,
    compared: Mapping[str, Mapping[str, Interval]] | None = None,
    yardstick: str = "never",
) -> None:
    """Write a picture of the rounds of a run, of controllers compared, or of both, to `path`.

    | argument | meaning |
    |---|---|
    | history | the rounds, as a run's summary holds them |
    | baselines | per controller and task: objective on the validation seeds |
    | compared | per task and controller: objective minus that of the yardstick |
    """
    panels = int(bool(history)) + int(bool(compared))
    figure = Figure(figsize=(6.5 * max(panels, 1), 4.5), layout="constrained")
    axes = list(figure.subplots(1, max(panels, 1), squeeze=False)[0])
    if history:
        _draw_rounds(axes.pop(0), history, baselines or {})
    if compared:
        _draw_compared(axes.pop(0), compared, yardstick)
    save_picture(figure, path)


def check_summary(summary: Mapping[str, Any], path: Path) -> None:
    """Refuse the summary of a run, read from `path`, that does not hold what `draw_learning` draws of it."""
    history, baselines = summary.get("history", []), summary.get("baselines", {})
    whole = isinstance(history, list) and all(_is_round(entry) for entry in history)
    if not whole or not isinstance(baselines, dict) or not all(map(_is_by_task, baselines.values())):
        raise DamagedFileError(f"{path} is damaged: it holds no history of rounds; resume the run, or leave it out")


def _is_round(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("round"), int) or not _is_by_task(entry.get("gain")):
        return False
    return entry.get("validation") is None or _is_by_task(entry["validation"])


def _is_by_task(scores: Any) -> bool:
    return isinstance(scores, dict) and all(isinstance(score, int | float) for score in scores.values())


def _draw_rounds(
    axes: Axes, history: Sequence[Mapping[str, Any]], baselines: Mapping[str, Mapping[str, float]]
) -> None:
    tasks = dict.fromkeys(task for entry in history for task in entry["gain"])
    for colour, task in zip(_COLOURS, tasks, strict=False):
        played = [entry for entry in history if task in entry["gain"]]  # a curriculum has other tasks at first
        rounds, gains = [entry["round"] for entry in played], [POINTS * entry["gain"][task] for entry in played]
        axes.plot(rounds, gains, ".", color=colour, alpha=0.35)
        axes.plot(rounds, _smoothed(gains), color=colour, label=f"{plain_label(task)}, sampled decisions")
        never = baselines.get("never", {}).get(task)
        if never is None:
            continue
        checked = [entry for entry in history if task in (entry.get("validation") or {})]
        points = [POINTS * (entry["validation"][task] - never) for entry in checked]
        axes.plot([entry["round"] for entry in checked], points, "D", color=colour, label="the same, deterministic")
        if task in baselines.get("heuristic", {}):
            rule = POINTS * (baselines["heuristic"][task] - never)
            axes.axhline(rule, color=colour, linestyle="--", linewidth=1, label="the same, by the heuristic")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlabel("round")
    axes.set_ylabel("objective over hosts left alone, points")
    axes.set_title("Learning (validation)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def _smoothed(values: Sequence[float]) -> list[float]:
    """Means of the last few values."""
    recent = [values[max(0, end - _WINDOW) : end] for end in range(1, len(values) + 1)]
    return [sum(part) / len(part) for part in recent]


def _draw_compared(axes: Axes, compared: Mapping[str, Mapping[str, Interval]], yardstick: str) -> None:
    names = [name for name in next(iter(compared.values())) if name != yardstick]
    for index, (colour, (task, rows)) in enumerate(zip(_COLOURS, compared.items(), strict=False)):
        offset = 0.25 * (index - (len(compared) - 1) / 2)
        for place, name in enumerate(names):
            mean, low, high = (POINTS * value for value in rows[name])
            label = plain_label(task) if place == 0 else None
            errors = [[mean - low], [high - mean]]
            axes.errorbar(mean, place + offset, xerr=errors, fmt="o", capsize=4, color=colour, label=label)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), [plain_label(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(f"objective minus {plain_label(yardstick)}, points (95 % interval)")
    axes.set_title("Same seeds, test split")
    axes.grid(alpha=0.3, axis="x")
    axes.legend(fontsize=8)
