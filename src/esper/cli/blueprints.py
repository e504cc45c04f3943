"""`esper blueprints`: the kinds of seeds and their cost."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from esper.cli.output import check_count, check_writable, print_table, write_json

_WIDEST = 2**16
_LARGEST = 2**32


@dataclass(frozen=True, slots=True)
class Blueprints:
    """List the blueprints of each family with their parameters and FLOPs at a given width."""

    family: Literal["all", "conv2d", "conv1d", "features"] = "all"
    """Which family to show."""
    width: int = 16
    """Channels or features at the slot."""
    positions: int = 16
    """Length of a series or sequence at the slot; images have this many rows and columns."""
    around: int = 10_000
    """Parameters of the network around the slot; bypasses are sized as a share of them."""
    json: Path | None = None
    """Write the list to this file too."""

    def run(self) -> bool:
        check_count("--width", self.width, most=_WIDEST)
        check_count("--positions", self.positions, most=_WIDEST)
        check_count("--around", self.around, most=_LARGEST)
        check_writable(self.json)
        from rich.table import Column

        rows, shown = self._rows(), []
        for row in rows:
            price = [f"{row[key]:,}" if row["fits"] else "does not fit" for key in ("params", "flops")]
            shown.append([*(str(row[key]) for key in ("family", "id", "name", "summary")), *price])
        prices = (Column(name, justify="right", no_wrap=True) for name in ("params", "FLOPs/sample"))
        print_table(("family", "id", Column("blueprint", no_wrap=True), "what it does", *prices), shown)
        sizes = {"width": self.width, "positions": self.positions, "around": self.around}
        write_json(self.json, {**sizes, "blueprints": rows})
        return True

    def _rows(self) -> list[dict[str, object]]:
        from esper.kasmina import Cost, Family, SiteShape, blueprints_of

        rows: list[dict[str, object]] = []
        for family in Family:
            if self.family not in ("all", family):
                continue
            extent = (self.positions,) * (2 if family is Family.CONV2D else 1)
            source = SiteShape(family, self.width, extent)
            site = SiteShape(family, self.width, extent, near=source, far=source, around=self.around)
            for entry in blueprints_of(family):
                fits = entry.fits(site)
                cost = entry.cost(site) if fits else Cost(0, 0)
                what = {"family": family.value, "id": entry.id, "name": entry.name, "summary": entry.summary}
                rows.append({**what, "fits": fits, **asdict(cost)})
        return rows
