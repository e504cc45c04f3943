"""`esper sql`: questions about a run, in SQL."""

import csv
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from esper.karn.sql import Answer


@dataclass(frozen=True, slots=True)
class Sql:
    """Ask a run, also one that is going on. Tables: rounds, episodes, decisions, seeds, rewards, anomalies, updates,
    heads, and events, which holds everything."""

    run_folder: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    query: Annotated[str, tyro.conf.Positional]
    """As in "select * from anomalies"."""
    format: Literal["table", "csv", "json"] = "table"
    """How rows are printed."""

    def run(self) -> bool:
        """Print the rows."""
        from esper.karn.sql import query, to_json

        answer = query(self.run_folder, self.query)
        if self.format == "json":
            sys.stdout.write(to_json(answer) + "\n")
        elif self.format == "csv":
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(answer.columns)
            writer.writerows(answer.rows)
        else:
            _print_table(answer)
        return True


def _print_table(answer: "Answer") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*answer.columns, show_edge=False)
    for row in answer.rows:
        table.add_row(*(_cell(value) for value in row))
    console = Console()
    console.print(table)
    console.print(f"{len(answer.rows)} rows", style="dim", highlight=False)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
