"""The live view shows the state."""

import io

from rich.console import Console

from esper.karn import GrowthView
from esper.tamiyo import Planting, Schedule, play
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
