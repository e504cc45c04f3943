"""`esper train`: a controller learns from many growth episodes."""

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.cli.output import check_writable, make_console, write_json
from esper.leyline import InputError, parse_json

if TYPE_CHECKING:
    from esper.simic.training import RoundReport, TrainingConfig

_EXIT_BY_SIGNAL = 128
"""Shells add this to the number of the signal that ended a command: 130 for SIGINT, 143 for SIGTERM."""
_JSON_STARTS = tuple('[{"-0123456789')
_JSON_WORDS = ("true", "false", "null", "NaN", "Infinity")


@dataclass(frozen=True, slots=True)
class Train:
    """Train a controller; what is not given comes from --preset or --config, or from the defaults of TrainingConfig."""

    task: tuple[str, ...] = ()
    """Tasks that every round mixes; see `esper tasks`."""
    out: Path = Path("runs/train")
    """Folder of the run: config, events, checkpoints, summary."""
    preset: str | None = None
    """A config by name: quick (two minutes), pair (what controllers are proven on), or that of a task."""
    config: Path | None = None
    """JSON file with fields of TrainingConfig."""
    set: tuple[str, ...] = ()
    """Any field of TrainingConfig as name=value, as in --set lr=0.001 reward.holding_cost=0.002."""
    rounds: int | None = None
    """Rounds of whole episodes."""
    envs: int | None = None
    """Hosts of each task in a round."""
    episode_length: int | None = None
    """Steps in an episode."""
    seed: int | None = None
    """Seeds everything."""
    device: str | None = None
    """Where the controller lives."""
    workers: int | None = None
    """Processes that hosts are spread over."""
    telemetry: str | None = None
    """off, minimal, normal or debug."""
    sink: tuple[str, ...] = ()
    """Where events go beside events.jsonl: console (warnings only), tensorboard, wandb or mlflow."""
    profile: Path | None = None
    """Folder for a profiler's trace of the third round that is played, or of the last if there are fewer."""
    resume: bool = False
    """Go on with the run in the folder; of the options above, only these may differ from its own: --rounds (more of
    them), --workers, --device, --telemetry, --sink and --profile."""
    json: Path | None = None
    """Write the summary to this file too."""

    def run(self) -> bool:
        """Train, with progress."""
        import torch

        import esper
        from esper.simic.training import InterruptedRunError, RunFolder, TrainingConfig

        check_writable(self.json)
        config = self._config(RunFolder(self.out).stored_config() if self.resume else TrainingConfig())
        torch.set_num_threads(1)
        console = make_console(stderr=True)
        with _stop_signals() as asked:
            try:
                summary = esper.train(
                    config,
                    self.out,
                    resume=self.resume,
                    watch=RoundPrinter(console),
                    announce=lambda what: console.print(f"{what} ...", style="dim", highlight=False, soft_wrap=True),
                    should_stop=lambda: bool(asked),
                    sinks=self.sink,
                    profile=self.profile,
                )
            except InterruptedRunError as stop:
                again = f"esper train --out {self.out} --resume"
                console.print(f"{stop}; go on with: {again}", highlight=False, soft_wrap=True)
                raise SystemExit(_EXIT_BY_SIGNAL + asked[0]) from None
        write_json(self.json, {"rounds": summary.rounds, "best_objective": summary.best_objective})
        console.print(f"Best controller: {RunFolder(self.out).best}", highlight=False, soft_wrap=True)
        console.print(f"Next: esper evaluate --controller {self.out}", highlight=False, soft_wrap=True)
        return True

    def _config(self, base: "TrainingConfig") -> "TrainingConfig":
        """`base`, changed by what is given."""
        from esper.simic.training import TrainingConfig

        names = ("rounds", "envs", "episode_length", "seed", "device", "workers", "telemetry")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.task:
            given["tasks"] = self.task
        changed = base.to_dict() | self._named_config() | given
        for name, value in _parse(self.set).items():
            _assign(changed, name, value)
        return TrainingConfig.from_dict(changed)

    def _named_config(self) -> dict[str, Any]:
        """The fields that --preset or --config decides."""
        import json

        from esper.simic.training import TrainingConfig, preset, preset_fields

        if self.preset is not None and self.config is not None:
            raise InputError("give --preset or --config, not both; --set changes single fields of either")
        if self.preset is not None:
            fields, names = preset(self.preset).to_dict(), preset_fields(self.preset)
        elif self.config is not None:
            fields, names = TrainingConfig.load(self.config).to_dict(), tuple(json.loads(self.config.read_text()))
        else:
            return {}
        return {name: fields[name] for name in names}


def _parse(assignments: tuple[str, ...]) -> dict[str, Any]:
    """Values are JSON where they look like it, or else text."""
    parsed: dict[str, Any] = {}
    for text in assignments:
        name, sign, value = text.partition("=")
        if not sign:
            raise InputError(f"--set takes name=value; got {text!r}")
        is_json = value.startswith(_JSON_STARTS) or value in _JSON_WORDS
        parsed[name] = parse_json(value, f"--set {name}") if is_json else value
    return parsed


def _assign(settings: dict[str, Any], name: str, value: Any) -> None:
    """Set a field; a dot leads into a group of fields, as in reward.scale."""
    group, dot, inner = name.partition(".")
    if dot and isinstance(settings.get(group), dict):
        _assign(settings[group], inner, value)
    else:
        settings[name] = value


@contextmanager
def _stop_signals() -> "Iterator[list[int]]":
    """The signals that asked the run to stop: the first SIGINT or SIGTERM does; another one ends it at once."""
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
    """One line per round: how good, what the policy does, how long it still takes."""

    def __init__(self, console: Any) -> None:
        self._console = console
        self._seconds: list[float] = []

    def __call__(self, report: "RoundReport") -> None:
        """Print a round."""
        self._seconds.append(report.seconds)
        recent = self._seconds[-10:]
        left = (report.rounds - report.round) * sum(recent) / len(recent)
        scores = "  ".join(
            f"{task} {100 * score:.1f}{_show_gain(report.outcome.gain[task])}"
            for task, score in report.outcome.objective.items()
        )
        ops = report.outcome.ops
        self._console.print(
            f"round {report.round}/{report.rounds}  J {scores}\n"
            f"    germinated {ops['GERMINATE']:.1f}  culled {ops['CULL']:.1f}  kept {report.outcome.kept:.1f}  "
            f"+{report.outcome.added_params:,.0f} parameters  entropy {report.metrics['joint_entropy']:.2f}  "
            f"explained variance {report.metrics['explained_variance']:.2f}  "
            f"{report.seconds:.0f} s, {left / 60:.0f} min left",
            highlight=False,
            soft_wrap=True,
        )
        for anomaly in report.anomalies:
            self._console.print(
                f"    ! {anomaly.kind}: {anomaly.message}", style="yellow", highlight=False, markup=False
            )
        if report.validation is not None:
            shown = ", ".join(f"{task} {100 * score:.1f}" for task, score in report.validation.items())
            never = ", ".join(f"{100 * report.baselines['never'][task]:.1f}" for task in report.validation)
            rule = ", ".join(f"{100 * report.baselines['heuristic'][task]:.1f}" for task in report.validation)
            line = f"    validation: {shown} (never {never}; heuristic {rule})"
            self._console.print(line, style="bold", highlight=False)


def _show_gain(gain: float) -> str:
    """What growing brought, in brackets; nothing where there are no twins to compare with."""
    return "" if math.isnan(gain) else f" ({100 * gain:+.1f} on its twins left alone)"
