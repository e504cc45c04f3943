"""The picture of a growth: accuracy over epochs of hosts side by side, with what happened to their seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from esper.karn.pictures import plain_label, save_picture
from esper.leyline import EventType, TelemetryEvent

_COLOURS = ("#1b7f4d", "#8a8f98", "#3465a4", "#b5651d")
_SHOWN = {"GERMINATED": ("germinated", "^"), "FOSSILIZED": ("kept", "*"), "CULLED": ("culled", "x")}
_STAGE_COLOURS = {
    "TRAINING": "#e9c46a",
    "BLENDING": "#7fc8d8",
    "HOLDING": "#c39bd3",
    "FOSSILIZED": "#6bbf8a",
    "CULLED": "#e08e79",
    "EMBARGOED": "#eeeeee",
}


def draw_growth(events: Mapping[str, Sequence[TelemetryEvent]], title: str, path: Path) -> None:
    """Draw the runs in `events` (by name, the grown one first) and write the picture to `path`."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    curves, lanes = figure.subplots(2, 1, height_ratios=(3, 1), sharex=True)
    for colour, (name, run) in zip(_COLOURS, events.items(), strict=False):
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
        said = _SHOWN.get(str(event.payload["to"])) if moved else None
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
