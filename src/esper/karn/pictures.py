"""Pictures of a growth and of a controller that learns, written as a whole file or not at all."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from esper.leyline import POINTS, DamagedFileError, EventType, InputError, TelemetryEvent, write_atomically

PICTURE_SUFFIXES = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp")
_DOTS_PER_INCH = 130
_RUN_COLOURS = ("#1b7f4d", "#8a8f98", "#3465a4", "#b5651d")
_MOVES = {"GERMINATED": ("germinated", "^"), "FOSSILIZED": ("kept", "*"), "CULLED": ("culled", "x")}
_STAGE_COLOURS = {
    "TRAINING": "#e9c46a",
    "BLENDING": "#7fc8d8",
    "HOLDING": "#c39bd3",
    "FOSSILIZED": "#6bbf8a",
    "CULLED": "#e08e79",
    "EMBARGOED": "#eeeeee",
}
_TASK_COLOURS = ("#1b7f4d", "#3465a4", "#b5651d", "#8a4f9e", "#8a8f98")
_WINDOW = 5
"""Rounds in the running mean of a learning curve."""
Interval = tuple[float, float, float]
"""Mean, lower and upper end."""


def check_picture(path: Path) -> None:
    """Refuse, before anything is computed, a name that no kind of picture has."""
    if path.suffix.lower() not in PICTURE_SUFFIXES:
        raise InputError(f"{path} is no name for a picture; it must end in one of: {', '.join(PICTURE_SUFFIXES)}")


def save_picture(figure: Figure, path: Path) -> None:
    """Write `figure` to `path` in the format that its suffix names."""
    check_picture(path)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix.lower().removeprefix("."), dpi=_DOTS_PER_INCH)
    write_atomically(path.resolve(), drawn.getvalue())


def plain_label(text: str) -> str:
    """`text` for a label: matplotlib takes what stands between dollars for mathematics, and fails on what is none."""
    return text.replace("$", r"\$")


def draw_growth(events: Mapping[str, Sequence[TelemetryEvent]], title: str, path: Path) -> None:
    """Draw the runs in `events` (by name, the grown one first) and write the picture to `path`."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    curves, lanes = figure.subplots(2, 1, height_ratios=(3, 1), sharex=True)
    for colour, (name, run) in zip(_RUN_COLOURS, events.items(), strict=False):
        _draw_curve(curves, name, colour, run)
    curves.set_ylabel("validation accuracy, %")
    curves.set_title(plain_label(title))
    curves.grid(alpha=0.3)
    curves.legend(loc="lower right")
    _draw_lanes(lanes, next(iter(events.values())))
    save_picture(figure, path)


def _epochs(run: Sequence[TelemetryEvent]) -> list[Mapping[str, Any]]:
    return [event.payload for event in run if event.event_type is EventType.EPOCH_COMPLETED]


def _draw_curve(axes: Axes, name: str, colour: str, run: Sequence[TelemetryEvent]) -> None:
    epochs = _epochs(run)
    scores = {int(epoch["epoch"]): 100 * float(epoch["val_score"]) for epoch in epochs}
    final = [event.payload["params"] for event in run if event.event_type is EventType.EPISODE_ENDED]
    params = f"{final[0]:,} parameters" if final else "unfinished"
    axes.plot(list(scores), list(scores.values()), color=colour, marker=".", label=f"{name}: {params}")
    low = True
    for event in run:
        moved = event.event_type is EventType.SEED_TRANSITION and not event.payload["rolled_back"]
        said = _MOVES.get(str(event.payload["to"])) if moved else None
        if said is not None:
            label, marker = said
            epoch = int(event.payload["epoch"])  # type: ignore[call-overload]
            height = scores.get(epoch, scores.get(epoch - 1, 0.0))
            axes.plot(epoch, height, marker, color=colour, markersize=11)
            text = f"{label} {event.payload['blueprint']} {event.slot_id}"
            low = not low  # at two heights in turn, so that neighbours do not overlap
            offset = (10, -20) if low else (10, -8)  # beside and below the curve, which rises
            axes.annotate(text, (epoch, height), offset, textcoords="offset points", fontsize=7, ha="left")


def _draw_lanes(axes: Axes, run: Sequence[TelemetryEvent]) -> None:
    """One lane per slot of the grown host, coloured by stage."""
    epochs = _epochs(run)
    names = [slot["slot"] for slot in epochs[0]["slots"]] if epochs else []
    used = set()
    for epoch in epochs:
        for lane, slot in enumerate(epoch["slots"]):
            colour = _STAGE_COLOURS.get(slot["stage"])
            if colour is not None:
                label = None if slot["stage"] in used else slot["stage"].lower()
                used.add(slot["stage"])
                axes.barh(lane, 1, left=int(epoch["epoch"]) - 0.5, color=colour, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel("epoch")
    if used:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.4), ncols=len(used), fontsize=8, frameon=False)


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
    for colour, task in zip(_TASK_COLOURS, tasks, strict=False):
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
    for index, (colour, (task, rows)) in enumerate(zip(_TASK_COLOURS, compared.items(), strict=False)):
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
