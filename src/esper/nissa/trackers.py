"""Sinks for experiment trackers: TensorBoard, Weights & Biases, MLflow. All of them write to a local folder.

Curves are what the numbers of rounds and updates make over the rounds; alarms go along as text. The packages are
extras: one that is not installed is an error when the sink is made, before anything runs.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from esper.leyline import EventType, InputError, Severity, TelemetryEvent, unknown_name
from esper.nissa.hub import BackgroundSink, ConsoleSink, Sink

_CURVES = {EventType.ROUND_COMPLETED: "round", EventType.UPDATE_COMPLETED: "update"}
"""Events whose numbers become curves, and the group that the curves are shown in."""
_PATIENCE = 60.0
"""Seconds that these may take to finish their files at the end: they start processes and databases of their own."""


def scalars_of(event: TelemetryEvent) -> dict[str, float]:
    """The numbers of `event` by name, as in `update/heads/op/kl`; nothing for events that are not curves."""
    group = _CURVES.get(event.event_type)
    return {} if group is None else dict(_flat(group, event.payload))


def _flat(name: str, value: object) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(f"{name}/{key}", item)
    elif isinstance(value, int | float):
        yield name, float(value)


def _alarm_of(event: TelemetryEvent) -> str | None:
    if event.event_type is not EventType.ANOMALY_DETECTED:
        return None
    return f"{event.payload['anomaly']}: {event.payload['message']}"


class TensorBoardSink:
    """Curves and alarms for `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: Path) -> None:
        _require("tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def write(self, event: TelemetryEvent) -> None:
        for name, number in scalars_of(event).items():
            self._writer.add_scalar(name, number, event.round)
        alarm = _alarm_of(event)
        if alarm is not None:
            self._writer.add_text("anomalies", alarm, event.round)
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """Curves and alarms for Weights & Biases, offline: `wandb sync` sends them, if ever."""

    def __init__(self, folder: Path) -> None:
        wandb = _require("wandb")
        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(console="off", silent=True, disable_git=True, x_disable_stats=True)
        self._run = wandb.init(project="esper", mode="offline", dir=str(folder), settings=settings)

    def write(self, event: TelemetryEvent) -> None:
        numbers: dict[str, Any] = dict(scalars_of(event))
        alarm = _alarm_of(event)
        if alarm is not None:
            numbers["anomaly"] = alarm
        if numbers:
            self._run.log(numbers | {"round_number": event.round})

    def close(self) -> None:
        self._run.finish()


class MlflowSink:
    """Curves and alarms for MLflow, in a database file of the folder: `mlflow ui --backend-store-uri sqlite:///…`."""

    def __init__(self, folder: Path) -> None:
        _require("mlflow")
        from mlflow.tracking import MlflowClient

        folder.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(tracking_uri=f"sqlite:///{(folder / 'mlflow.db').resolve()}")
        found = self._client.get_experiment_by_name("esper")
        artifacts = (folder / "artifacts").resolve().as_uri()
        experiment = found.experiment_id if found else self._client.create_experiment("esper", artifacts)
        self._run = self._client.create_run(experiment).info.run_id

    def write(self, event: TelemetryEvent) -> None:
        from mlflow.entities import Metric

        when, step = int(1000 * event.timestamp), event.round or 0
        numbers = [Metric(name, number, when, step) for name, number in scalars_of(event).items()]
        if numbers:
            self._client.log_batch(self._run, metrics=numbers)
        alarm = _alarm_of(event)
        if alarm is not None:
            self._client.set_tag(self._run, f"anomaly.round{step:06d}.{event.payload['anomaly']}", alarm)

    def close(self) -> None:
        self._client.set_terminated(self._run)


def _require(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise InputError(f"the sink {package} needs its package: pip install 'esper[{package}]'") from None


_SINKS: Mapping[str, Callable[[Path], Sink]] = {
    "console": lambda _: ConsoleSink(minimum=Severity.WARNING),
    "tensorboard": TensorBoardSink,
    "wandb": WandbSink,
    "mlflow": MlflowSink,
}


def check_sinks(names: Iterable[str]) -> None:
    """Refuse sinks that do not exist or whose packages are not installed, before any of them writes anything."""
    for name in names:
        if name not in _SINKS:
            raise unknown_name("sink", name, _SINKS)
        if name != "console":
            _require(name)


def make_sink(name: str, folder: Path) -> BackgroundSink:
    """The sink called `name`, writing under `folder` without making a run wait."""
    check_sinks([name])
    return BackgroundSink(_SINKS[name](folder / name), patience=_PATIENCE)
