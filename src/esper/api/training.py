"""`train` and `evaluate`: what the command line calls, and what scripts call."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from esper.api.shipping import SHIPPED, shipped_controller
from esper.api.statistics import Estimate
from esper.leyline import InputError, unknown_name
from esper.nissa import BackgroundSink, Hub, JsonLinesSink, Sink, check_sinks, make_sink
from esper.simic.telemetry import prepare_profile, profiled
from esper.simic.training import (
    CONTROLLER_SUFFIX,
    RoundReport,
    RunFolder,
    Trainer,
    TrainingConfig,
    TrainingSummary,
    load_controller,
    read_controller,
    require_ready,
    resumed_config,
    settled,
)
from esper.tamiyo import Controller, controller_names, make_controller, run_episodes
from esper.tasks import find_task
from esper.tolaria import EpisodeResult, EpisodeSettings


def train(
    config: TrainingConfig,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    watch: Callable[[RoundReport], None] = lambda _: None,
    announce: Callable[[str], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
    sinks: Sequence[str] = (),
    profile: Path | None = None,
) -> TrainingSummary:
    """Train a controller; with `out`, a run folder is written there, and `resume` goes on with the run in it.

    A resumed run may be given more rounds, other workers and devices and another level of telemetry than its stored
    config has, and nothing else. `watch` is told about every round, `announce` about what comes before the first one.
    When `should_stop` says so, between two steps, the run saves and raises `InterruptedRunError`. `sinks` are places
    for events beside the run's own log, which need the folder: console, tensorboard, wandb, mlflow. `profile` is a
    folder for a profiler's trace of the third round that is played, or of the last if there are fewer.
    """
    check_sinks(sinks)
    prepare_profile(profile)
    if out is None and (resume or sinks):
        raise InputError(f"{'resume' if resume else 'a sink'} needs the folder of the run")
    with _opened(None if out is None else RunFolder(Path(out)), config, resume) as (folder, settings):
        opened, flush = _open_sinks(folder, sinks)
        with Hub(opened) as hub:
            trainer = Trainer(
                settings,
                folder,
                resume=resume,
                hub=hub,
                watch=watch,
                announce=announce,
                should_stop=should_stop,
                flush=flush,
            )
            if folder is not None:
                folder.update(settings)
            left = settings.rounds - trainer.state.round
            announce(_describe(settings, folder, trainer.state.round))
            with profiled(profile if left else None, trainer.state.round, left) as end_round:
                summary = trainer.run(end_round)
        if folder is not None:
            folder.write_summary(asdict(summary))
    return summary


@contextmanager
def _opened(
    folder: RunFolder | None, config: TrainingConfig, resume: bool
) -> Iterator[tuple[RunFolder | None, TrainingConfig]]:
    """The folder, held by this process, and the config that the run has; all that can be refused is refused first."""
    if folder is None:
        yield None, settled(config)
    elif resume:
        folder.stored_config()  # or there is nothing to resume, and nothing to hold
        with folder.held():
            yield folder, resumed_config(folder.stored_config(), config)
    else:
        folder.require_free()
        config = settled(config)
        require_ready(config)
        with folder.held():
            folder.create(config)
            yield folder, config


_SHOWN_TASKS = 4
"""More tasks than that are counted."""


def _describe(config: TrainingConfig, folder: RunFolder | None, played: int) -> str:
    """What is about to be done, in one line."""
    where = "" if folder is None else f" in {folder.path}"
    tasks, lessons = config.world.tasks, config.lessons
    shown = ", ".join(tasks if len(tasks) <= _SHOWN_TASKS else (*tasks[:2], f"{len(tasks) - 2} other tasks"))
    parts = f"{lessons.rounds} lessons" if config.rounds == 0 and lessons.teacher else f"{config.rounds} rounds"
    what = f"{shown}; {parts} of {config.world.episodes} episodes"
    if played == config.rounds > 0:
        return f"all rounds are played{where} ({what}); a larger number of rounds would go on"
    after = f"; going on after round {played}" if played else ""
    return f"training{where}: {what}; seed {config.seed}{after}"


def _open_sinks(folder: RunFolder | None, names: Sequence[str]) -> tuple[list[Sink], Callable[[], None]]:
    """The run's own log and the other sinks, and what waits until the log is written."""
    if folder is None:
        return [], lambda: None
    log = BackgroundSink(JsonLinesSink(folder.events))
    return [log, *(make_sink(name, folder.path) for name in names)], log.flush


def find_controller(name_or_path: str) -> Controller:
    """A controller by its name, or the one in a run folder, checkpoint or controller file."""
    if name_or_path in controller_names():
        return make_controller(name_or_path)
    if name_or_path == SHIPPED:
        return shipped_controller()
    path = Path(name_or_path)
    if path.exists():
        return read_controller(path) if path.suffix == CONTROLLER_SUFFIX else load_controller(path)
    kinds = ("a run folder", "a checkpoint", "a controller file")
    raise unknown_name("controller", name_or_path, [*controller_names(), SHIPPED, *kinds])


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How a controller did on one task, on the test split, seed by seed."""

    controller: str
    task: str
    seeds: tuple[int, ...]
    results: tuple[EpisodeResult, ...]

    @property
    def objective(self) -> Estimate:
        return Estimate.of([result.test_objective for result in self.results])

    @property
    def test_accuracy(self) -> Estimate:
        return Estimate.of([result.test_score for result in self.results])

    @property
    def parameters(self) -> Estimate:
        return Estimate.of([result.host_params + result.added_params for result in self.results])

    def gain_over(self, other: "Evaluation") -> Estimate:
        """Objective minus that of `other`, seed by seed."""
        pairs = zip(self.results, other.results, strict=True)
        return Estimate.of([mine.test_objective - theirs.test_objective for mine, theirs in pairs])

    def to_dict(self) -> dict[str, Any]:
        names = ("objective", "test_accuracy", "parameters")
        numbers = {name: getattr(self, name).to_dict() for name in names}
        return {"controller": self.controller, "task": self.task, "seeds": list(self.seeds), **numbers}


def evaluate(
    controller: str | Controller,
    task: str,
    seeds: Sequence[int],
    *,
    settings: EpisodeSettings | None = None,
    executor: str = "auto",
    progress: Callable[[int], None] = lambda _: None,
) -> Evaluation:
    """Run a controller over episodes with these seeds, deterministically, and read the test split."""
    if not seeds:
        raise InputError("episodes must be 1 or more")
    chosen = find_controller(controller) if isinstance(controller, str) else controller
    results = run_episodes(find_task(task), chosen, seeds, settings, executor=executor, progress=progress)
    return Evaluation(chosen.name, task, tuple(seeds), tuple(results))
