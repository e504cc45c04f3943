"""`esper train`: learn a controller from growth episodes."""

import math
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from esper.cli.output import check_writable, make_console, write_json
from esper.leyline import InputError
from esper.simic.config import TrainingConfig, preset

if TYPE_CHECKING:
    from esper.simic.training import RoundReport

_EXIT_BY_SIGNAL = 128
"""Shells add this to the number of the signal that ended a command: 130 for SIGINT, 143 for SIGTERM."""
_OUT = Path("runs/train")
_SHORT = {
    "--task": "--world.tasks",
    "--envs": "--world.envs",
    "--episode-length": "--world.episode-length",
    "--workers": "--world.workers",
    "--device": "--learner.device",
    "--teacher": "--lessons.teacher",
    "--telemetry": "--telemetry.level",
}
"""Short forms of common options."""

_Config = Annotated[TrainingConfig, tyro.conf.arg(name=""), tyro.conf.AvoidSubcommands]


@dataclass(frozen=True, slots=True)
class Train:
    """Train a controller. Options override those of --preset or --config.

    Short forms: --task for --world.tasks; likewise --envs, --episode-length, --workers, --device, --teacher and
    --telemetry.
    """

    config: _Config = field(default_factory=TrainingConfig)
    out: Path = _OUT
    """Run folder, for config, events, checkpoints and summary."""
    preset: str | None = None
    """Config to start from: quick (two minutes), pair (the benchmark of controllers), or the name of a task."""
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """JSON file with a config to start from."""
    sink: tuple[str, ...] = ()
    """Further sinks for events besides events.jsonl: console (warnings only), tensorboard, wandb, mlflow."""
    profile: Path | None = None
    """Folder for a profiler trace of the third round played, or of the last if there are fewer."""
    resume: bool = False
    """Resume the run in the folder. Only --rounds (to a larger number), --workers, --device, --world.host-devices and
    --telemetry may change."""
    json: Path | None = None
    """Write the summary to this file too."""

    def run(self) -> bool:
        import torch

        import esper
        from esper.simic.training import InterruptedRunError, RunFolder

        check_writable(self.json)
        torch.set_num_threads(1)
        console = make_console(stderr=True)
        with _stop_signals() as asked:
            try:
                summary = esper.train(
                    self.config,
                    self.out,
                    resume=self.resume,
                    watch=RoundPrinter(console),
                    announce=lambda what: console.print(f"{what} ...", style="dim", soft_wrap=True),
                    should_stop=lambda: bool(asked),
                    sinks=self.sink,
                    profile=self.profile,
                )
            except InterruptedRunError as stop:
                again = f"esper train --out {self.out} --resume"
                console.print(f"{stop}; resume with: {again}", soft_wrap=True)
                raise SystemExit(_EXIT_BY_SIGNAL + asked[0]) from None
        write_json(self.json, {"rounds": summary.rounds, "best_objective": summary.best_objective})
        console.print(f"Best controller: {RunFolder(self.out).best}", soft_wrap=True)
        console.print(f"Next: esper evaluate --controller {self.out}", soft_wrap=True)
        return True


def full_names(arguments: Sequence[str]) -> list[str]:
    """The arguments of `esper train` with short options written out."""
    written = []
    for argument in arguments:
        name, sign, value = argument.partition("=")
        written.append(_SHORT.get(name, name) + sign + value)
    return written


def base_config(arguments: Sequence[str]) -> TrainingConfig:
    """The config that options override: of the run to resume, of a preset or of a file."""
    named, given = _value_of("--preset", arguments), _value_of("--config", arguments)
    if named is not None and given is not None:
        raise InputError("give --preset or --config, not both; other options override single fields of either")
    if given is not None:
        return TrainingConfig.load(Path(given))
    if named is not None:
        return preset(named)
    if "--resume" in arguments:
        from esper.simic.training import RunFolder

        return RunFolder(Path(_value_of("--out", arguments) or _OUT)).stored_config()
    return TrainingConfig()


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    for index, argument in enumerate(arguments):
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
        if argument == option and index + 1 < len(arguments):
            return arguments[index + 1]
    return None


@contextmanager
def _stop_signals() -> "Iterator[list[int]]":
    """Collects signals: the first SIGINT or SIGTERM asks the run to stop, a second one ends it at once."""
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:  # noqa: ARG001
        if asked:
            raise SystemExit(_EXIT_BY_SIGNAL + number)
        asked.append(number)

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class RoundPrinter:
    """Prints each round: objectives, what the policy did, time left, alarms, validation."""

    def __init__(self, console: Any) -> None:
        self._print = partial(console.print, soft_wrap=True)
        self._seconds: list[float] = []

    def __call__(self, report: "RoundReport") -> None:
        record = report.record
        self._seconds.append(record.seconds)
        recent = self._seconds[-10:]
        left = (report.rounds - record.round) * sum(recent) / len(recent)
        scores = "  ".join(
            f"{task} {100 * score:.1f}{_show_gain(record.gain[task])}" for task, score in record.objective.items()
        )
        self._print(
            f"round {record.round}/{report.rounds}  J {scores}\n"
            f"    germinated {record.ops['GERMINATE']:.1f}  culled {record.ops['CULL']:.1f}  kept {record.kept:.1f}  "
            f"+{record.added_params:,.0f} parameters  entropy {record.entropy:.2f}  "
            f"explained variance {record.explained_variance:.2f}  {record.seconds:.0f} s, {left / 60:.0f} min left"
        )
        for anomaly in report.anomalies:
            self._print(f"    ! {anomaly.kind}: {anomaly.message}", style="yellow")
        if record.validation is not None:
            shown = ", ".join(f"{task} {100 * score:.1f}" for task, score in record.validation.items())
            never, rule = (
                ", ".join(f"{100 * report.baselines[name][task]:.1f}" for task in record.validation)
                for name in ("never", "heuristic")
            )
            self._print(f"    validation: {shown} (never {never}; heuristic {rule})", style="bold")


def _show_gain(gain: float) -> str:
    """The gain over the twins, in brackets; nothing without twins."""
    return "" if math.isnan(gain) else f" ({100 * gain:+.1f} over twins left alone)"
