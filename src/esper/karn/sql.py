"""SQL over a run: its event log as tables, also while it is being written."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import duckdb

from esper.leyline import InputError
from esper.nissa.hub import json_value
from esper.simic.agent.types import PPOUpdateMetrics

_COLUMNS = {
    "v": "INTEGER",
    "type": "VARCHAR",
    "severity": "VARCHAR",
    "timestamp": "DOUBLE",
    "round": "INTEGER",
    "env_id": "INTEGER",
    "slot_id": "VARCHAR",
    "payload": "JSON",
}
_LONGEST_LINE = 16 * 1024 * 1024
"""Bytes of one event. DuckDB keeps a buffer of twice that for each thread that reads."""
_ROWS_AT_ONCE = 1000

Row = tuple[Any, ...]

_DROP_INTERRUPTED = """
CREATE TEMP TABLE replayed AS
    SELECT round, (SELECT max(timestamp) FROM events WHERE type = 'run_started' AND timestamp <= last) AS since
    FROM (SELECT round, max(timestamp) AS last FROM events WHERE round IS NOT NULL GROUP BY round);
DELETE FROM events USING replayed WHERE events.round = replayed.round AND events.timestamp < replayed.since;
DROP TABLE replayed;
"""
"""A round that a stopped run had begun is played again when it is resumed: only what follows its last start counts."""

_CLOSE = "SET enable_external_access = false; SET lock_configuration = true"
"""From here on no query reads or writes a file, or changes that."""


def _take(kind: str, names: str, of: str = "payload") -> str:
    """Columns of type `kind` from the fields `names` of a JSON object; `field:name` renames one.

    A value that is of another type is NULL, so that one bad event does not spoil the others.
    """
    pairs = (name.partition(":") for name in names.split())
    return ", ".join(f"TRY_CAST({of}->>'{field}' AS {kind}) AS \"{name or field}\"" for field, _, name in pairs)


def _by_key(group: str) -> str:
    """A JSON object in the payload as a map: its keys are data, which `->>` would take for paths."""
    return f"TRY_CAST(payload->'{group}' AS MAP(VARCHAR, JSON))"


def _view(kind: str, *columns: str) -> str:
    return f"SELECT round, {', '.join(columns)} FROM events WHERE type = '{kind}'"


_HOST = "env_id AS host"
_OPS = "WAIT:waited GERMINATE:germinated FOSSILIZE:fossilized CULL:culled"
_UPDATE_GROUPS = ("heads", "gradients", "lstm", "seeds", "entropy_collapsed")
_METRICS = get_type_hints(PPOUpdateMetrics)
"""What an update reports: scalars, and numbers per head."""
_SQL_TYPES = {float: "DOUBLE", int: "INTEGER", bool: "BOOLEAN"}
_PER_HEAD = " ".join(name.removeprefix("head_") for name, hint in _METRICS.items() if get_origin(hint) is dict)


VIEWS = {
    "rounds": _view(
        "round_completed",
        f"unnest(map_keys({_by_key('objective')})) AS task",
        *(f"TRY_CAST({_by_key(name)}[task]->>'$' AS DOUBLE) AS {name}" for name in ("objective", "gain", "validation")),
        _take("DOUBLE", "kept added_params"),
        _take("DOUBLE", _OPS, "payload->'ops'"),
        _take("INTEGER", "dropped"),
        _take("DOUBLE", "seconds"),
    ),
    "episodes": _view(
        "episode_ended",
        _HOST,
        _take("VARCHAR", "task"),
        _take("DOUBLE", "val_score:score objective twin_objective return price kept"),
        _take("INTEGER", "added_params params steps"),
        _take("INTEGER", _OPS, "payload->'ops'"),
        _take("BOOLEAN", "dropped"),
    ),
    "rewards": _view(
        "episode_ended",
        _HOST,
        _take("VARCHAR", "task"),
        f"unnest(map_keys({_by_key('components')})) AS component",
        f"TRY_CAST({_by_key('components')}[component]->>'$' AS DOUBLE) AS amount",
    ),
    "decisions": _view(
        "decisions_recorded",
        _HOST,
        "unnest(range(1, CAST(json_array_length(payload->'op') AS BIGINT) + 1)) AS step",
        *(f"payload->'{name}'->>(step - 1) AS {name}" for name in ("op", "slot", "blueprint", "blend")),
        *(f"TRY_CAST(payload->'{name}'->>(step - 1) AS DOUBLE) AS {name}" for name in ("log_prob", "value", "reward")),
    ),
    "seeds": _view(
        "seed_transition",
        _HOST,
        "slot_id AS slot",
        _take("INTEGER", "epoch"),
        _take("VARCHAR", "blueprint from to reason"),
        _take("DOUBLE", "contribution"),
        _take("INTEGER", "params"),
        _take("BOOLEAN", "rolled_back"),
    ),
    "updates": _view(
        "update_completed",
        _take("INTEGER", "update total_steps"),
        _take("DOUBLE", "learning_rate"),
        *(_take(_SQL_TYPES[hint], name, "payload->'metrics'") for name, hint in _METRICS.items() if hint in _SQL_TYPES),
        *(f"payload->'{name}' AS \"{name}\"" for name in _UPDATE_GROUPS),
        _take("VARCHAR", "level"),
    ),
    "heads": _view(
        "update_completed",
        f"unnest(map_keys({_by_key('heads')})) AS head",
        _take("DOUBLE", _PER_HEAD, f"{_by_key('heads')}[head]"),
    ),
    "anomalies": _view("anomaly_detected", _take("VARCHAR", "anomaly message advice"), "payload->'details' AS details"),
}
"""What can be asked, beside `events` itself."""


@contextmanager
def ask(run: Path, sql: str) -> Iterator[tuple[tuple[str, ...], Iterator[Row]]]:
    """Ask the run in the folder `run`, which has `VIEWS`; gives the names of the columns, and the rows.

    Rows, of which there may be millions, are fetched as they are read inside the `with` block.
    """
    with open_run(run) as connection:
        try:
            result = connection.execute(sql)
        except Exception as error:
            raise _query_failed(error) from None
        if result is None or result.description is None:
            raise InputError(f'the query {sql!r} asks for nothing; try "select * from rounds"')
        yield tuple(column[0] for column in result.description), _fetch(result)


def _fetch(result: duckdb.DuckDBPyConnection) -> Iterator[Row]:
    while True:
        try:
            rows = result.fetchmany(_ROWS_AT_ONCE)
        except Exception as error:
            raise _query_failed(error) from None
        if not rows:
            return
        yield from rows


def _query_failed(error: Exception) -> Exception:
    """Memory that runs out is no fault of the query; all else is, also a value that Python has no type for."""
    if isinstance(error, MemoryError | duckdb.OutOfMemoryException):
        return error
    return InputError(f"the query failed: {_one_line(error)}")


@contextmanager
def open_run(run: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory with the events that the run has written by now; it can reach nothing else."""
    log = run / "events.jsonl"
    try:
        found = log.is_file()
    except (OSError, ValueError):  # a name that no file can have
        found = False
    if not found:
        raise InputError(f"{run} holds no run: there is no {log.name} in it")
    with duckdb.connect(":memory:") as connection:
        try:
            _load(connection, log)
        except duckdb.OutOfMemoryException:
            raise
        except (duckdb.Error, OSError) as error:
            raise InputError(f"{log} cannot be read as a log of events: {_one_line(error)}") from None
        for name, definition in VIEWS.items():
            connection.execute(f"CREATE VIEW {name} AS {definition}")
        connection.execute(_CLOSE)
        yield connection


def _load(connection: duckdb.DuckDBPyConnection, log: Path) -> None:
    """Take in the whole lines of the file, in their order; those that were cut off are left out."""
    connection.execute(f"CREATE TABLE events ({', '.join(f'{name} {kind}' for name, kind in _COLUMNS.items())})")
    columns = ", ".join(f"{name}: '{kind}'" for name, kind in _COLUMNS.items())
    with log.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return
        connection.execute("SET threads = 1")  # each would have a buffer of its own
        # By its number, because in a path DuckDB takes * and ? and [ for patterns.
        connection.execute(
            f"INSERT INTO events SELECT * FROM read_json('/dev/fd/{file.fileno()}', format = 'newline_delimited', "
            f"compression = 'none', hive_partitioning = false, ignore_errors = true, columns = {{{columns}}}, "
            f"maximum_object_size = {_LONGEST_LINE}) WHERE type IS NOT NULL"
        )
        connection.execute("RESET threads")
    connection.execute(_DROP_INTERRUPTED)


def _one_line(error: Exception) -> str:
    """The first line that says what is wrong, and where names are misspelt the one with the right ones."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    hints = [line for line in lines[1:] if line.startswith(("Did you mean", "Candidate"))]
    return " ".join([*lines[:1], *hints[:1]])


def to_json(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """A list of objects, one per row, piece by piece; NaN and infinities are null and text, as in the log."""
    names = _distinct(columns)
    before = "["
    for row in rows:
        told = dict(zip(names, map(json_value, row), strict=True))
        text = json.dumps(told, indent=2, default=str, allow_nan=False)
        yield before + "\n  " + text.replace("\n", "\n  ")
        before = ","
    yield "[]" if before == "[" else "\n]"


def _distinct(names: Sequence[str]) -> list[str]:
    """Names of columns of which no two are alike: later ones get a number."""
    made: dict[str, None] = {}
    for name in names:
        candidates = (name if number == 0 else f"{name}_{number}" for number in range(len(names)))
        made[next(candidate for candidate in candidates if candidate not in made)] = None
    return list(made)
