"""Experiment trackers get curves and alarms, offline; absent packages are told before a run starts."""

import importlib.util
import sqlite3
import time
from pathlib import Path

import pytest

from esper.leyline import EventType, InputError, TelemetryEvent
from esper.nissa import Hub, make_sink, scalars_of
from esper.nissa.events import AnomalyDetected


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"the extra {package} is not installed")


def send(name: str, folder: Path) -> None:
    payload = {"joint_kl": 0.25, "heads": {"op": {"kl": 0.5}}, "level": "normal", "lstm": None, "early_stopped": True}
    with Hub([make_sink(name, folder)]) as hub:
        for number in (1, 2):
            hub.emit(TelemetryEvent(EventType.UPDATE_COMPLETED, payload, round=number))
        hub.bind(round_=2).tell(AnomalyDetected(anomaly="kl_spike", message="too far", advice="", details={}))


def test_numbers_are_named_by_where_they_are() -> None:
    event = TelemetryEvent(EventType.UPDATE_COMPLETED, {"a": 1, "heads": {"op": {"kl": 0.5}}, "level": "x", "on": True})
    assert scalars_of(event) == {"update/a": 1.0, "update/heads/op/kl": 0.5, "update/on": 1.0}
    assert scalars_of(TelemetryEvent(EventType.EPISODE_STARTED, {"seed": 1})) == {}


@needs("tensorboard")
@pytest.mark.filterwarnings("ignore")  # of tensorboard's own packages
def test_tensorboard_shows_the_curves(tmp_path: Path) -> None:
    send("tensorboard", tmp_path)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert [(point.step, point.value) for point in read.Scalars("update/heads/op/kl")] == [(1, 0.5), (2, 0.5)]
    assert "anomalies/text_summary" in read.Tags()["tensors"]


@needs("mlflow")
@pytest.mark.filterwarnings("ignore")  # of mlflow's own packages
def test_mlflow_keeps_the_curves_in_a_file(tmp_path: Path) -> None:
    send("mlflow", tmp_path)
    with sqlite3.connect(tmp_path / "mlflow" / "mlflow.db") as database:
        rows = database.execute(
            "select step, value from metrics where key = 'update/joint_kl' order by step"
        ).fetchall()
        tags = database.execute("select value from tags where key like 'anomaly%'").fetchall()
    database.close()
    assert rows == [(1, 0.25), (2, 0.25)]
    assert tags == [("kl_spike: too far",)]


@needs("wandb")
@pytest.mark.filterwarnings("ignore")  # of wandb's own packages
def test_wandb_writes_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    send("wandb", tmp_path)
    (written,) = (tmp_path / "wandb").rglob("*.wandb")
    deadline = time.monotonic() + 120  # a process of wandb's own writes the file, and may lag behind
    while b"update/joint_kl" not in written.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert b"update/joint_kl" in written.read_bytes()


def test_an_unknown_or_absent_sink_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="unknown sink 'paper'; choose one of: console, tensorboard"):
        make_sink("paper", tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(InputError, match=r"pip install 'esper\[mlflow\]'"):
        make_sink("mlflow", tmp_path)
