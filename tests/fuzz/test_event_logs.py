"""Event logs: whatever lines a log holds, every view can be asked, and nothing but the log is read or written."""

import json
from pathlib import Path
from typing import Any

import pytest

from esper.karn.sql import VIEWS, open_run
from esper.leyline import EventType
from tests.fuzzing_files import (
    Case,
    blocks,
    damaged,
    deep_json,
    fails_in_one_sentence,
    odd_json,
    odd_number,
    odd_text,
    run_cases,
    run_command,
)

pytestmark = pytest.mark.slow

_KINDS = [kind.value for kind in EventType]
_GROUPS: dict[str, Any] = {
    "ops": {"WAIT": 1, "CULL": 0},
    "objective": {"t": 0.5},
    "gain": {"t": 0.1},
    "validation": None,
    "components": {"end": 1.0},
    "heads": {"op": {"entropy": 0.5, "choices": 3}},
    "op": ["WAIT", "CULL"],
    "slot": [None, "r0c1"],
    "value": [0.5, None],
    "details": {},
}
_NUMBERS = (
    "val_score",
    "steps",
    "params",
    "kept",
    "seconds",
    "epoch",
    "contribution",
    "update",
    "dropped",
    "policy_loss",
)
_SQL = (
    "select * from events order by all",
    "select payload->>'{0}' from events",
    "select '{0}' as \"{1}\"",
    "select * from {0}",
    "{0}",
    "copy events to '{2}/made.csv'",
    "copy (pivot events on type) to '{2}/made.csv' (use_tmp_file false)",
    "attach '{2}/made.db' as x; create table x.y as select 1",
    "export database '{2}/made'",
    "install json; load '{2}/made'",
    "select * from read_text('{2}/../*')",
    "select * from '{2}/config.json'",
    "set temp_directory = '{2}/made'; select 1",
    "pragma enable_profiling; pragma profiling_output = '{2}/made'",
    "call enable_logging(storage = 'file', storage_path = '{2}/made')",
    "create or replace view rounds as select 1; select * from rounds",
    "drop table events; select * from rounds",
    "select repeat('x', 100000) from range(3)",
    "select {0}, {1}",
)


def _event(case: Case) -> dict[str, Any]:
    draw = case.draw
    payload: dict[str, Any] = {**_GROUPS, "task": "t", **dict.fromkeys(_NUMBERS, 1)}
    for name in draw.sample(list(payload), draw.randrange(4)):
        payload[name] = odd_json(draw, 2)
    event: dict[str, Any] = {
        "v": 1,
        "type": draw.choice(_KINDS),
        "severity": "INFO",
        "timestamp": draw.uniform(0, 10),
        "round": draw.choice((None, 1, 2, 3)),
        "env_id": 0,
        "slot_id": None,
        "payload": payload,
    }
    if draw.random() < 0.3:
        event[draw.choice((*event, odd_text(draw)))] = draw.choice((odd_json(draw), odd_number(draw)))
    return event


def _log(case: Case) -> bytes:
    draw = case.draw
    lines = [json.dumps(_event(case)) for _ in range(draw.randrange(8))]
    if draw.random() < 0.3:
        odd = draw.choice((odd_text(draw), deep_json(draw), json.dumps(odd_json(draw)), '{"type": "x", "payload": '))
        lines.insert(draw.randrange(len(lines) + 1), odd)
    text = "\n".join(lines).encode(errors="surrogateescape") + draw.choice((b"", b"\n", b"\r\n"))
    return damaged(draw, text) if draw.random() < 0.3 else text


def _ask_all(folder: Path) -> None:
    with open_run(folder) as connection:
        for view in ("events", *VIEWS):
            connection.execute(f"select * from {view}").fetchall()


def _one_log(case: Case) -> None:
    run = case.folder / case.draw.choice(("run", "a*b", "[x]", "k=v", "it's", "[/red]"))
    run.mkdir(parents=True)
    content = _log(case)
    (run / "events.jsonl").write_bytes(content)
    if case.number % 2:
        assert fails_in_one_sentence(case, lambda: _ask_all(run)) is None, f"{case}: {content[:2000]!r}"
    else:
        sql = case.draw.choice(_SQL).format(odd_text(case.draw), odd_text(case.draw), run)
        _, shown, _ = run_command(case, "sql", str(run), sql, "--format", case.draw.choice(("table", "csv", "json")))
        odd = {char for char in shown if not char.isprintable()} - {"\n", "\t"}
        assert not odd, f"{case}: {sql!r} printed {odd}"
    assert [path.name for path in run.iterdir()] == ["events.jsonl"], case
    assert (run / "events.jsonl").read_bytes() == content, case


@blocks(800)
def test_every_view_of_any_log_answers(first: int, tmp_path: Path) -> None:
    run_cases("event logs", first, tmp_path, _one_log)
