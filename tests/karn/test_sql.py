"""SQL over a run: every view, while it is written, after a kill, and one clear line for every mistake."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

import esper
from esper.cli.main import main
from esper.karn.sql import VIEWS, open_run
from esper.leyline import InputError
from esper.nissa import JsonLinesSink
from esper.nissa.events import EpisodeStarted, RunStarted
from tests.karn.queries import query
from tests.simic.training.runs import tiny_config
from tests.worlds import TINY


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    esper.train(tiny_config(rounds=2, max_ratio=1.0001, op_bias=(-2.0, 0.0, 0.0, 0.0)), folder)
    return folder


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_has_rows(view: str, run: Path) -> None:
    assert query(run, f"select * from {view}")


def test_views_hold_what_the_run_reported(run: Path) -> None:
    history = json.loads((run / "summary.json").read_text())["history"]
    rounds = query(run, "select round, task, objective, germinated from rounds order by round")
    assert rounds == [(entry["round"], TINY, entry["objective"][TINY], entry["ops"]["GERMINATE"]) for entry in history]
    assert query(run, "select count(*), count(distinct host) from episodes") == [(8, 4)]
    assert query(run, "select count(*) from decisions where op = 'GERMINATE' and blueprint is null") == [(0,)]
    (planted,) = query(run, "select count(*) from seeds where \"to\" = 'GERMINATED'")
    assert query(run, "select sum(germinated) from episodes") == [planted]
    assert query(run, "select count(*) from decisions where op = 'GERMINATE'") == [planted]
    together = "select sum(amount) from rewards where round = 1"
    assert query(run, together)[0][0] == pytest.approx(sum(history[0]["components"].values()) * 4, abs=1e-4)
    assert query(run, "select distinct anomaly from anomalies where round = 1") == [("ratio_explosion",)]
    assert query(run, "select count(*) from heads where round = 2") == [(4,)]
    told = "select count(kls), count(entropies), count(entropy_coefs) from heads where round = 2"
    assert query(run, told) == [(4, 4, 4)]
    (numbers,) = query(run, "select approx_kl, clip_fraction, optimizer_steps from updates where round = 2")
    assert numbers[:2] == (history[1]["approx_kl"], history[1]["clip_fraction"])
    assert numbers[2] > 0


def test_a_log_that_is_being_written_or_was_cut_is_read(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "events.jsonl")
    sink.write(EpisodeStarted(task="t", seed=1, host_params=1).event(round_=1))
    assert query(tmp_path, "select count(*) from events") == [(1,)]  # while the file is open
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"v": 1, "type": "episode_st')
    assert query(tmp_path, "select count(*) from events") == [(1,)]
    again = JsonLinesSink(tmp_path / "events.jsonl")
    again.write(EpisodeStarted(task="t", seed=2, host_params=1).event(round_=1))
    assert query(tmp_path, "select count(*) from events") == [(2,)]
    sink.close()
    again.close()


def test_a_round_that_was_played_again_counts_once(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "events.jsonl")
    for attempt in range(2):
        sink.write(RunStarted(config={}, baselines={}).event())
        sink.write(EpisodeStarted(task="t", seed=attempt, host_params=1).event(round_=1))
    sink.close()
    assert query(tmp_path, "select payload->>'seed' from events where round = 1") == [("1",)]


def test_rows_are_in_the_order_of_the_log(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "events.jsonl")
    for number in range(1, 41):
        sink.write(EpisodeStarted(task="t", seed=number, host_params=1).event(round_=number))
    sink.close()
    assert query(tmp_path, "select round from events") == [(number,) for number in range(1, 41)]


def test_an_empty_log_has_empty_views(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()
    assert all(query(tmp_path, f"select * from {view}") == [] for view in VIEWS)


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["sql", *arguments])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_rows_are_printed_in_three_ways(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "select round, host, score from episodes where round = 1 order by host"
    code, table, _ = ask(capsys, str(run), sql)
    assert code == 0
    assert "round" in table
    assert "4 rows" in table
    _, text, _ = ask(capsys, str(run), sql, "--format", "csv")
    rows = list(csv.reader(io.StringIO(text)))
    assert rows[0] == ["round", "host", "score"]
    assert [row[:2] for row in rows[1:]] == [["1", str(host)] for host in range(4)]
    _, text, _ = ask(capsys, str(run), sql, "--format", "json")
    assert [row["host"] for row in json.loads(text)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("selec 1", 'the query failed: Parser Error: syntax error at or near "selec"'),
        ("select * from nowhere", "the query failed: Catalog Error: Table with name nowhere does not exist!"),
        ("select * from read_csv('/etc/passwd')", "the query failed: Permission Error"),
    ],
)
def test_a_bad_query_gives_one_clear_line(
    sql: str, message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = ask(capsys, str(run), sql)
    assert code == 2
    assert error.startswith(f"esper: {message}")
    assert error.count("\n") == 1


def test_a_missing_run_gives_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = ask(capsys, str(tmp_path / "none"), "select 1")
    assert code == 2
    assert error == f"esper: {tmp_path / 'none'} holds no run: there is no events.jsonl in it\n"
    with pytest.raises(InputError):
        query(tmp_path, "select 1")


def write_events(folder: Path, *payloads: object, kind: str = "episode_started", **fields: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    base = {"v": 1, "severity": "INFO", "timestamp": 1.0, "round": 1, "env_id": 0, "slot_id": None}
    lines = [json.dumps({**base, "type": kind, "payload": payload, **fields}) for payload in payloads]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("text", ["[/foo]", "[null]", "[bold]b[/bold]", ":smile:", "\\[x]"])
def test_data_is_never_taken_for_markup(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_events(tmp_path, {"task": text})
    code, table, error = ask(capsys, str(tmp_path), f"select payload->>'task' as \"{text}\" from events")
    assert (code, error) == (0, "")
    assert table.count(text) == 2  # as the column's name and in its row


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_control_characters_of_data_do_not_reach_the_terminal(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_events(tmp_path, {"task": "a\x1b]0;owned\x07\x9b31mb"})
    code, shown, _ = ask(capsys, str(tmp_path), "select payload->>'task' as t from events", "--format", form)
    assert code == 0
    assert not {char for char in shown if not char.isprintable()} - {"\n"}
    assert "1b]0;owned" in shown.replace("u00", "x")
    code, _, error = ask(capsys, str(tmp_path), "select error('a\x1b[31m\x9b')")
    assert code == 2
    assert error == "esper: the query failed: Invalid Input Error: a\\x1b[31m\\x9b\n"


@pytest.mark.parametrize("name", ["a*b", "a?b", "[ab]", "a[b", "key=value", "it's", "~", "back\\slash", "a{b,c}", "é"])
def test_the_name_of_a_run_is_taken_literally(name: str, tmp_path: Path) -> None:
    write_events(tmp_path / name, {"task": "mine"})
    for other in ("axb", "a", "b", "ab"):
        write_events(tmp_path / other, {"task": "not mine"})
    assert query(tmp_path / name, "select payload->>'task' from events") == [("mine",)]
    assert len(query(tmp_path / name, "select * from events")[0]) == 8


def test_one_bad_value_spoils_nothing_else(tmp_path: Path) -> None:
    good = {"task": "t", "val_score": 0.5, "steps": 3, "ops": {"WAIT": 2}, "components": {"end": 1.0}, "dropped": False}
    bad = {"task": [], "val_score": "high", "steps": {}, "ops": 7, "components": {"$x": "y", "/z": 2}, "dropped": "?"}
    write_events(tmp_path, bad, good, kind="episode_ended")
    found = query(tmp_path, "select score, steps, waited, dropped from episodes")
    assert found == [(None, None, None, None), (0.5, 3, 2, False)]
    amounts = query(tmp_path, "select component, amount from rewards order by 1")
    assert amounts == [("$x", None), ("/z", 2.0), ("end", 1.0)]
    for kind in ("round_completed", "update_completed", "decisions_recorded"):
        nested = {key: {"$a": [1], "b": "?"} for key in ("objective", "gain", "heads", "op", "ops", "slot")}
        write_events(tmp_path, nested, {key: [[]] for key in nested}, dict.fromkeys(nested, 0), [], None, kind=kind)
        with open_run(tmp_path) as connection:
            for view in VIEWS:
                connection.execute(f"select * from {view}").fetchall()


def test_lines_that_are_no_events_are_left_out(tmp_path: Path) -> None:
    write_events(tmp_path, {"task": "t"})
    good = (tmp_path / "events.jsonl").read_bytes()
    odd = [b"\xff\xfe", b"[1]", b"5", b'{"type": 5', b"\x00", b'{"type": "x", "round": "y", "payload": [[[]]]}', b""]
    (tmp_path / "events.jsonl").write_bytes(good + b"\n".join(odd) + b"\n" + good)
    assert query(tmp_path, "select type, round from events") == [
        ("episode_started", 1),
        ("x", None),
        ("episode_started", 1),
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "copy (select 1) to '{file}'",
        "copy (select 1) to '/dev/fd/3'",
        "attach '{file}' as other",
        "set profiling_output = '{file}'",
        "call enable_logging('QueryLog', storage = 'file', storage_path = '{file}')",
        "set enable_external_access = true",
        "select * from read_text('{log}')",
        "",
        "-- nothing",
        "select interval '100000000 years'",
    ],
)
def test_a_query_reaches_no_file_and_fails_in_one_line(
    sql: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_events(tmp_path, {})
    text = sql.format(file=tmp_path / "made", log=tmp_path / "events.jsonl")
    code, _, error = ask(capsys, str(tmp_path), text)
    assert code == 2
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl"]


def test_a_long_table_is_cut_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_events(tmp_path, {})
    _, table, _ = ask(capsys, str(tmp_path), "select * from range(1500)")
    assert "the first 1,000 of 1,500 rows; --format csv or json prints all" in table
    _, text, _ = ask(capsys, str(tmp_path), "select * from range(1500)", "--format", "csv")
    assert text.splitlines()[-1] == "1499"


def test_json_keeps_columns_of_one_name_apart_and_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_events(tmp_path, {})
    sql = "select 1 as a, 'nan'::double as a, '-inf'::double as b, {'k': [1.5::double]} as c"
    _, text, _ = ask(capsys, str(tmp_path), sql, "--format", "json")
    assert json.loads(text) == [{"a": 1, "a_1": None, "b": "-inf", "c": {"k": [1.5]}}]
    _, text, _ = ask(capsys, str(tmp_path), "select 1 where false", "--format", "json")
    assert text == "[]\n"


@pytest.mark.slow
def test_a_large_log_takes_little_memory(tmp_path: Path) -> None:
    event = {"v": 1, "type": "seed_transition", "severity": "INFO", "timestamp": 1.0, "env_id": 0, "slot_id": "r0c1"}
    payload = {"epoch": 3, "blueprint": "heavy", "from": "TRAINING", "to": "BLENDING", "contribution": 0.12345}
    with (tmp_path / "events.jsonl").open("w") as log:
        for number in range(500_000):
            log.write(json.dumps({**event, "round": number // 1000, "payload": {**payload, "note": "x" * 150}}) + "\n")
    script = (
        "import resource, sys; from pathlib import Path; from esper.karn.sql import open_run\n"
        "with open_run(Path(sys.argv[1])) as run: rows = run.execute('select count(*) from seeds').fetchall()\n"
        "print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    rows, megabytes = done.stdout.rsplit(maxsplit=1)
    assert rows == "[(500000,)]"
    assert int(megabytes) < 400  # for a log of 170 MB
