"""`esper grow`: grow one network under a budget and save it as a plain program."""

import io
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from esper.cli.options import EpisodeOptions
from esper.cli.output import check_seed, check_writable, make_console, make_folder, say, write_bytes, write_json
from esper.leyline import EventType, InputError, TrainingFailedError

if TYPE_CHECKING:
    from esper.leyline import TelemetryEvent
    from esper.tamiyo import Controller
    from esper.tasks import Task
    from esper.tolaria import Episode, EpisodeResult, EpisodeSettings, Outcome


@dataclass(frozen=True, slots=True)
class Grow(EpisodeOptions):
    """Grow one network with any controller and save it as a `torch.export` program that loads without Esper."""

    task: str = "mnist1d"
    """Task to train on; see `esper tasks`."""
    controller: str = "heuristic"
    """never, random, schedule, heuristic, rule, shipped, a run folder, a checkpoint or a controller file."""
    seed: int = 0
    """Random seed of the network's weights, its minibatches and what is planted in it."""
    out: Path = Path("runs/grown.pt2")
    """File for the network; the history of its growth goes beside it, with the suffix .json."""
    json: Path | None = None
    """Write the numbers to this file too."""

    def run(self) -> bool:
        import torch

        from esper.api import find_controller
        from esper.tasks import find_task

        check_seed(self.seed)
        settings = self.episode_settings()
        controller, task = find_controller(self.controller), find_task(self.task)
        history = self._check_files()
        torch.set_num_threads(1)
        with make_console().status(f"Growing on {task.name} ..."):
            episode, events = self._grow(task, settings, controller)
            result = episode.finish()
            self._save(episode)
        numbers = {"task": task.name, "controller": controller.name, "seed": self.seed, **asdict(result)}
        told = [{"type": event.event_type, "slot": event.slot_id, **event.payload} for event in events]
        write_json(history, {**numbers, "events": told})
        write_json(self.json, numbers)
        size, score = result.host_params + result.added_params, 100 * result.test_score
        say(f"Kept {describe_kept(result) or 'nothing'}: {size:,} parameters, score on test {score:.1f}")
        say(f"Network: {self.out} (torch.export.load)", f"History: {history}")
        return True

    def _check_files(self) -> Path:
        """Check that results can be written; the file for the history."""
        if not self.out.name:
            raise InputError(f"--out must name a file; got {self.out}")
        history = self.out.with_suffix(".json")
        if history == self.out:
            raise InputError("--out must not end in .json: that name is for the history")
        check_writable(self.json)
        make_folder("--out", self.out.parent)
        check_writable(self.out, history, self.json)
        return history

    def _grow(
        self, task: "Task", settings: "EpisodeSettings", controller: "Controller"
    ) -> "tuple[Episode, list[TelemetryEvent]]":
        from esper.nissa import Hub, MemorySink
        from esper.tamiyo import play
        from esper.tolaria import Episode

        memory = MemorySink()
        episode = Episode(task, self.seed, settings, hub=Hub([memory]))

        def check(outcome: "Outcome") -> None:
            if outcome.terminated.any():
                reason = why_given_up(episode, memory.events)
                raise TrainingFailedError(f"{reason}; nothing was saved; try another --seed or --controller")

        play(episode, controller, self.seed, check)
        return episode, memory.events

    def _save(self, episode: "Episode") -> None:
        import torch

        from esper.kasmina import fold

        example = episode.task.splits().val.x[:2]
        plain = fold(episode.model, example).network.eval()
        shapes = ({0: torch.export.Dim("batch")},)
        packed = io.BytesIO()
        torch.export.save(torch.export.export(plain, (example,), dynamic_shapes=shapes), packed)
        write_bytes(self.out, packed.getvalue())


def describe_kept(result: "EpisodeResult") -> str:
    return ", ".join(f"{seed.blueprint} in {seed.slot_id} (+{seed.params:,})" for seed in result.kept)


def why_given_up(episode: "Episode", events: "list[TelemetryEvent]") -> str:
    """What made the governor end an episode."""
    reasons = [event.payload["reason"] for event in events if event.event_type is EventType.GOVERNOR_ROLLBACK]
    epoch = int(episode.signals.epoch)
    return (
        f"training on {episode.task.name} failed {len(reasons)} times and was given up at epoch {epoch} of "
        f"{episode.length} (last: {reasons[-1]})"
    )
