"""SQL over a run: its event log as tables, also while it is being written."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from esper.leyline import InputError

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
_LARGEST_LINE = 64 * 1024 * 1024

_ATTEMPTS = """
CREATE TABLE starts AS SELECT timestamp FROM log WHERE type = 'run_started';
CREATE TABLE events AS
    SELECT * EXCLUDE (attempt, line) FROM (
        SELECT log.*, rowid AS line,
            (SELECT count(*) FROM starts WHERE starts.timestamp <= log.timestamp) AS attempt
        FROM log
    )
    QUALIFY round IS NULL OR attempt = max(attempt) OVER (PARTITION BY round)
    ORDER BY line;
"""
"""A round that a stopped run had begun is played again when it is resumed: only the last time counts.

Rows are in the order of the log, which people expect of a table that they have not ordered.
"""


def _take(kind: str, names: str, of: str = "payload") -> str:
    """Columns of type `kind` from the fields `names` of a JSON object; `field:name` renames one."""
    pairs = (name.partition(":") for name in names.split())
    return ", ".join(f"CAST({of}->>'{field}' AS {kind}) AS \"{name or field}\"" for field, _, name in pairs)


def _view(kind: str, *columns: str) -> str:
    return f"SELECT round, {', '.join(columns)} FROM events WHERE type = '{kind}'"


_HOST = "env_id AS host"
_OPS = "WAIT:waited GERMINATE:germinated FOSSILIZE:fossilized CULL:culled"
_UPDATE_NUMBERS = (
    "policy_loss value_loss total_loss joint_entropy joint_kl approx_kl clip_fraction ratio_max ratio_min "
    "round_ratio_low round_ratio_high explained_variance total_grad_norm post_clip_grad_norm value_grad_norm "
    "learning_rate return_scale"
)
_UPDATE_GROUPS = ("heads", "values", "advantages", "gradients", "lstm", "seeds", "entropy_collapsed")
_HEAD_NUMBERS = "entropy choice_entropy kl clip_fraction ratio_max ratio_min grad_norm entropy_coef mask_hit_rate"
VIEWS = {
    "rounds": _view(
        "round_completed",
        "unnest(json_keys(payload->'objective')) AS task",
        *(f"CAST(payload->'{name}'->>task AS DOUBLE) AS {name}" for name in ("objective", "gain", "validation")),
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
        "unnest(json_keys(payload->'components')) AS component",
        "CAST(payload->'components'->>component AS DOUBLE) AS amount",
    ),
    "decisions": _view(
        "decisions_recorded",
        _HOST,
        "unnest(range(1, CAST(json_array_length(payload->'op') AS BIGINT) + 1)) AS step",
        *(f"payload->'{name}'->>(step - 1) AS {name}" for name in ("op", "slot", "blueprint", "blend")),
        *(f"CAST(payload->'{name}'->>(step - 1) AS DOUBLE) AS {name}" for name in ("log_prob", "value", "reward")),
    ),
    "seeds": _view(
        "seed_transition",
        _HOST,
        "slot_id AS slot",
        _take("INTEGER", "epoch"),
        _take("VARCHAR", "blueprint from to"),
        _take("DOUBLE", "contribution"),
        _take("INTEGER", "params"),
        _take("BOOLEAN", "rolled_back"),
    ),
    "updates": _view(
        "update_completed",
        _take("INTEGER", "update total_steps"),
        _take("DOUBLE", _UPDATE_NUMBERS),
        _take("INTEGER", "epochs_run optimizer_steps skipped_steps"),
        _take("BOOLEAN", "early_stopped"),
        *(f"payload->'{name}' AS \"{name}\"" for name in _UPDATE_GROUPS),
        _take("VARCHAR", "level"),
    ),
    "heads": _view(
        "update_completed",
        "unnest(json_keys(payload->'heads')) AS head",
        _take("INTEGER", "choices", "payload->'heads'->head"),
        _take("DOUBLE", _HEAD_NUMBERS, "payload->'heads'->head"),
    ),
    "anomalies": _view("anomaly_detected", _take("VARCHAR", "anomaly message advice"), "payload->'details' AS details"),
}
"""What can be asked, beside `events` itself."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows with the names of their columns."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]


def query(run: Path, sql: str) -> Answer:
    """Ask the run in the folder `run`; see `VIEWS` for what there is."""
    with open_run(run) as connection:
        try:
            result = connection.execute(sql)
            described = result.description or ()
            return Answer(tuple(column[0] for column in described), result.fetchall())
        except duckdb.Error as error:
            raise InputError(f"the query failed: {_one_line(error)}") from None


def open_run(run: Path) -> duckdb.DuckDBPyConnection:
    """A database in memory with the events that the run has written by now; it can reach nothing else."""
    log = run / "events.jsonl"
    if not log.is_file():
        raise InputError(f"{run} holds no run: there is no {log.name} in it")
    connection = duckdb.connect(":memory:")
    try:
        _load(connection, log)
    except duckdb.Error as error:
        connection.close()
        raise InputError(f"{log} cannot be read as a log of events: {_one_line(error)}") from None
    for name, definition in VIEWS.items():
        connection.execute(f"CREATE VIEW {name} AS {definition}")
    connection.execute("SET enable_external_access = false")
    return connection


def _load(connection: duckdb.DuckDBPyConnection, log: Path) -> None:
    """Take in the whole lines of the file; those that were cut off are left out."""
    columns = ", ".join(f"{name}: '{kind}'" for name, kind in _COLUMNS.items())
    if log.stat().st_size == 0:
        connection.execute(f"CREATE TABLE log ({', '.join(f'{name} {kind}' for name, kind in _COLUMNS.items())})")
    else:
        connection.execute(
            "CREATE TABLE log AS SELECT * FROM read_json($path, format = 'newline_delimited', ignore_errors = true, "
            f"columns = {{{columns}}}, maximum_object_size = {_LARGEST_LINE}) WHERE type IS NOT NULL",
            {"path": str(log)},
        )
    connection.execute(_ATTEMPTS)


def _one_line(error: Exception) -> str:
    """The first line that says what is wrong, and where names are misspelt the one with the right ones."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    hints = [line for line in lines[1:] if line.startswith(("Did you mean", "Candidate"))]
    return " ".join([*lines[:1], *hints[:1]])


def to_json(answer: Answer) -> str:
    """A list of objects, one per row."""
    rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    return json.dumps(rows, indent=2, default=str)
