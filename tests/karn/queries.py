"""Questions to the log of a run."""

from pathlib import Path

from esper.karn.sql import Row, ask


def query(run: Path, sql: str) -> list[Row]:
    with ask(run, sql) as (_, rows):
        return list(rows)
