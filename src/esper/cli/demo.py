"""`esper demo`: one host grows beside the same host left alone."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from esper.cli.grow import describe_kept, why_given_up
from esper.cli.output import (
    check_count,
    check_seed,
    check_writable,
    make_console,
    make_folder,
    print_table,
    say,
    write_json,
)
from esper.leyline import TelemetryEvent, TrainingFailedError

if TYPE_CHECKING:
    from esper.tamiyo import Controller
    from esper.tasks import Task
    from esper.tolaria import EpisodeResult, EpisodeSettings

_ALONE = "left alone"
_LOGS = ("grown", "alone")


@dataclass(frozen=True, slots=True)
class Demo:
    """Grow one host next to an identical one that is left alone: live view, table and plot."""

    task: str = "mnist1d"
    """Task to train on; see `esper tasks`."""
    controller: str = "heuristic"
    """heuristic, schedule, random or never."""
    seed: int = 205
    """Random seed of both hosts' weights and minibatches; 205 is typical for mnist1d."""
    epochs: int | None = None
    """Epochs to train for; the task's default if not given."""
    out: Path = Path("runs/demo")
    """Folder for the plot, event logs and summary; those of an earlier demo are overwritten."""
    json: Path | None = None
    """Write the numbers to this file too."""

    def run(self) -> bool:
        from esper.karn import draw_growth
        from esper.tamiyo import Never, make_controller
        from esper.tasks import find_task
        from esper.tolaria import EpisodeSettings

        check_seed(self.seed)
        if self.epochs is not None:
            check_count("--epochs", self.epochs)
        task, settings = find_task(self.task), EpisodeSettings(length=self.epochs)
        controllers = {f"grown by {self.controller}": make_controller(self.controller), _ALONE: Never()}
        check_writable(self.json)
        make_folder("--out", self.out)
        names = ("growth.png", "summary.json", *(f"{run}.jsonl" for run in _LOGS))
        check_writable(self.json, *(self.out / name for name in names))

        with make_console().status(f"Preparing the data of {task.name} ..."):
            task.splits()
        results, events, given_up = self._grow(task, settings, controllers)
        picture = self.out / "growth.png"
        draw_growth(events, f"{task.name}, seed {self.seed}", picture)
        numbers = {name: _numbers(result) for name, result in results.items()}
        summary = {"task": task.name, "seed": self.seed, "runs": numbers}
        write_json(self.out / "summary.json", summary)
        write_json(self.json, summary)
        _print_results(results)
        say(f"Picture: {picture}", f"Event logs: {self.out}/*.jsonl")
        if given_up:
            raise TrainingFailedError(f"{'; '.join(given_up)}; the results are of the last good epoch")
        return True

    def _grow(
        self, task: "Task", settings: "EpisodeSettings", controllers: "dict[str, Controller]"
    ) -> "tuple[dict[str, EpisodeResult], dict[str, list[TelemetryEvent]], list[str]]":
        """Step all hosts in turn, shown live and recorded; also returns which runs the governor ended, and why."""
        import torch

        from esper.karn import GrowthView
        from esper.nissa import Hub, JsonLinesSink, MemorySink
        from esper.tolaria import Episode

        torch.set_num_threads(1)
        memories = {name: MemorySink() for name in controllers}
        hubs, episodes = {}, {}
        for run, (name, controller) in zip(_LOGS, controllers.items(), strict=True):
            log = self.out / f"{run}.jsonl"
            log.unlink(missing_ok=True)
            hubs[name] = Hub([memories[name], JsonLinesSink(log)])
            episodes[name] = Episode(task, self.seed, settings, hub=hubs[name])
            controller.reset(1, self.seed)
        given_up = []
        with GrowthView(list(controllers)) as view:
            while not all(episode.done for episode in episodes.values()):
                for name, episode in episodes.items():
                    if not episode.done:
                        outcome = episode.step(controllers[name].decide(episode.situation))
                        view.update(name, episode)
                        if outcome.terminated.any():
                            given_up.append(f"{name}: {why_given_up(episode, memories[name].events)}")
        results = {name: episode.finish() for name, episode in episodes.items()}
        for hub in hubs.values():
            hub.close()
        return results, {name: memory.events for name, memory in memories.items()}, given_up


def _numbers(result: "EpisodeResult") -> dict[str, object]:
    return {**asdict(result), "val_objective": result.val_objective, "test_objective": result.test_objective}


def _print_results(results: "dict[str, EpisodeResult]") -> None:
    rows = []
    for name, result in results.items():
        params = f"{result.host_params + result.added_params:,}"
        score, objective = f"{100 * result.test_score:.1f} %", f"{100 * result.test_objective:.1f}"
        rows.append((name, score, params, objective, describe_kept(result)))
    print_table(("host", "test accuracy", "parameters", "objective", "what was grown where"), rows)
    price = next(iter(results.values())).price
    say(f"Objective: test accuracy minus {100 * price:g} points per 100 % of added parameters.")
