"""`esper sql`: query the event log of a run."""

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from esper.cli.output import make_console
from esper.leyline import printable

if TYPE_CHECKING:
    from esper.karn.sql import Row

_MOST_IN_TABLE = 1000


@dataclass(frozen=True, slots=True)
class Sql:
    """Query the event log of a run, even while it is running.

    Tables: rounds, episodes, decisions, seeds, rewards, anomalies, updates, heads, and events, which holds everything.
    """

    run_folder: Annotated[Path, tyro.conf.Positional]
    """Run folder."""
    query: Annotated[str, tyro.conf.Positional]
    """SQL, such as "select * from anomalies"."""
    format: Literal["table", "csv", "json"] = "table"
    """Output format; a table shows the first 1,000 rows, csv and json all of them."""

    def run(self) -> bool:
        from esper.karn.sql import ask, to_json

        with ask(self.run_folder, self.query) as (columns, rows):
            if self.format == "json":
                sys.stdout.writelines(to_json(columns, rows))
                sys.stdout.write("\n")
            elif self.format == "csv":
                writer = csv.writer(sys.stdout, lineterminator="\n")
                writer.writerow([_csv_cell(name) for name in columns])
                writer.writerows([_csv_cell(value) for value in row] for row in rows)
            else:
                _print_table(columns, rows)
        return True


def _print_table(columns: Sequence[str], rows: "Iterator[Row]") -> None:
    from rich.table import Table

    table = Table(*(printable(name) for name in columns), show_edge=False)
    for row in islice(rows, _MOST_IN_TABLE):
        table.add_row(*(_cell(value) for value in row))
    shown, left = table.row_count, sum(1 for _ in rows)
    console = make_console()
    console.print(table)
    console.print(
        f"the first {shown:,} of {shown + left:,} rows; --format csv or json prints all" if left else f"{shown} rows",
        style="dim",
    )


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))


def _csv_cell(value: object) -> object:
    """Text keeps its line breaks and tabs; other control characters are escaped."""
    if not isinstance(value, str) or value.isprintable():
        return value
    return "\n".join("\t".join(printable(part) for part in line.split("\t")) for line in value.split("\n"))
