"""SQL over a run: every view, while it is written, after a kill, and one clear line for every mistake."""

import csv
import io
import json
from pathlib import Path

import pytest

import esper
from esper.cli.main import main
from esper.karn.sql import VIEWS, query
from esper.leyline import InputError
from esper.nissa import JsonLinesSink
from esper.nissa.events import EpisodeStarted, RunStarted
from tests.simic.training.test_vectorized import tiny_config
from tests.worlds import TINY


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    esper.train(tiny_config(rounds=2, anomaly_max_ratio_threshold=1.0001, op_bias=(-2.0, 0.0, 0.0, 0.0)), folder)
    return folder


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_has_rows(view: str, run: Path) -> None:
    assert query(run, f"select * from {view}").rows


def test_views_hold_what_the_run_reported(run: Path) -> None:
    history = json.loads((run / "summary.json").read_text())["history"]
    rounds = query(run, "select round, task, objective, germinated from rounds order by round").rows
    assert rounds == [(entry["round"], TINY, entry["objective"][TINY], entry["ops"]["GERMINATE"]) for entry in history]
    assert query(run, "select count(*), count(distinct host) from episodes").rows == [(8, 4)]
    assert query(run, "select count(*) from decisions where op = 'GERMINATE' and blueprint is null").rows == [(0,)]
    (planted,) = query(run, "select count(*) from seeds where \"to\" = 'GERMINATED'").rows
    assert query(run, "select sum(germinated) from episodes").rows == [planted]
    assert query(run, "select count(*) from decisions where op = 'GERMINATE'").rows == [planted]
    together = "select sum(amount) from rewards where round = 1"
    assert query(run, together).rows[0][0] == pytest.approx(sum(history[0]["components"].values()) * 4, abs=1e-4)
    assert query(run, "select distinct anomaly from anomalies where round = 1").rows == [("ratio_explosion",)]
    assert query(run, "select count(*) from heads where round = 2").rows == [(4,)]


def test_a_log_that_is_being_written_or_was_cut_is_read(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "events.jsonl")
    sink.write(EpisodeStarted(task="t", seed=1, host_params=1).event(round_=1))
    assert query(tmp_path, "select count(*) from events").rows == [(1,)]  # while the file is open
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"v": 1, "type": "episode_st')
    assert query(tmp_path, "select count(*) from events").rows == [(1,)]
    again = JsonLinesSink(tmp_path / "events.jsonl")
    again.write(EpisodeStarted(task="t", seed=2, host_params=1).event(round_=1))
    assert query(tmp_path, "select count(*) from events").rows == [(2,)]
    sink.close()
    again.close()


def test_a_round_that_was_played_again_counts_once(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "events.jsonl")
    for attempt in range(2):
        sink.write(RunStarted(config={}, baselines={}).event())
        sink.write(EpisodeStarted(task="t", seed=attempt, host_params=1).event(round_=1))
    sink.close()
    assert query(tmp_path, "select payload->>'seed' from events where round = 1").rows == [("1",)]


def test_rows_are_in_the_order_of_the_log(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "events.jsonl")
    for number in range(1, 41):
        sink.write(EpisodeStarted(task="t", seed=number, host_params=1).event(round_=number))
    sink.close()
    assert query(tmp_path, "select round from events").rows == [(number,) for number in range(1, 41)]


def test_an_empty_log_has_empty_views(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()
    assert all(query(tmp_path, f"select * from {view}").rows == [] for view in VIEWS)


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
