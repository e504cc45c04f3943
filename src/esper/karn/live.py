"""The live view of hosts that grow side by side in a terminal."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from esper.leyline import Stage

if TYPE_CHECKING:  # the tasks are not needed to draw them
    from esper.tolaria import Episode

_STYLES = {
    Stage.DORMANT: "dim",
    Stage.GERMINATED: "green",
    Stage.TRAINING: "yellow",
    Stage.BLENDING: "cyan",
    Stage.HOLDING: "magenta",
    Stage.FOSSILIZED: "bold green",
    Stage.CULLED: "red",
    Stage.EMBARGOED: "dim red",
}
_PANEL_WIDTH = 58
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class _Panel:
    scores: list[float] = field(default_factory=list)
    body: Group | Text = field(default_factory=lambda: Text("starting ..."))


class GrowthView:
    """Shows, for each named host, its epoch, accuracy, parameters and slots; refreshed by `update`."""

    def __init__(self, titles: list[str], console: Console | None = None) -> None:
        self._panels = {title: _Panel() for title in titles}
        self._live = Live(self._draw(), console=console or Console(), refresh_per_second=8)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)

    def update(self, title: str, episode: "Episode") -> None:
        """Show the present state of `episode` in the panel `title`."""
        panel = self._panels[title]
        epoch = int(episode.signals.epoch)
        panel.scores.append(float(episode.signals.val_score))
        params = episode.host_params + int(episode.model.table.added_params)
        headline = Text(
            f"epoch {epoch:>3} of {episode.length}   accuracy {100 * panel.scores[-1]:5.1f} %   {params:,} parameters"
        )
        panel.body = Group(headline, Text(_sparkline(panel.scores), style="blue"), _slots(episode))
        self._live.update(self._draw(), refresh=True)

    def _draw(self) -> Columns:
        panels = self._panels.items()
        return Columns([Panel(panel.body, title=title, width=_PANEL_WIDTH) for title, panel in panels])


def _sparkline(scores: list[float]) -> str:
    return "".join(_BARS[min(int(score * len(_BARS)), len(_BARS) - 1)] for score in scores if score == score)


def _slots(episode: "Episode") -> Table:
    # One space between columns: with more, the longest names would not fit into a panel.
    table = Table("slot", "seed", "stage", "alpha", "adds", box=None, header_style="dim", padding=(0, 1, 0, 0))
    for site in episode.model.sites:
        view = episode.model.slot(site.slot_id)
        known = view.occupied and view.contribution == view.contribution
        adds = f"{100 * view.contribution:+.1f}" if known else ""
        stage = Text(view.stage.name.lower(), style=_STYLES[view.stage])
        alpha = f"{view.alpha:.2f}" if view.occupied else ""
        table.add_row(f"{site.slot_id} ({site.path})", view.blueprint or "", stage, alpha, adds)
    return table
