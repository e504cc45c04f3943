"""`esper grow`: one network grows under a budget and is saved as a plain program."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from esper.cli.output import check_seed, check_writable, write_json
from esper.leyline import DEFAULT_PRICE, InputError

if TYPE_CHECKING:
    from esper.leyline import TelemetryEvent
    from esper.tamiyo import Controller
    from esper.tolaria import Episode, Task


@dataclass(frozen=True, slots=True)
class Grow:
    """Grow one network with any controller and save it, as a `torch.export` program that needs no Esper to load."""

    task: str = "mnist1d"
    """What to train on; see `esper tasks`."""
    controller: str = "heuristic"
    """Who decides: never, random, schedule, heuristic, a run folder or a checkpoint."""
    budget_params: int | None = None
    """The most parameters that growth may add."""
    seed: int = 0
    """Seeds the network, its minibatches and its seeds."""
    price: float = DEFAULT_PRICE
    """What adding as many parameters as the host has costs."""
    out: Path = Path("runs/grown.pt2")
    """File for the network; its growth history goes to the same name with .json."""
    json: Path | None = None
    """Write the numbers to this file too."""

    def run(self) -> bool:
        """Grow, save, and say what came of it."""
        import torch
        from rich.console import Console

        from esper.api import find_controller
        from esper.tolaria import find_task

        check_seed(self.seed)
        if self.budget_params is not None and self.budget_params < 0:
            raise InputError(f"--budget-params must be 0 or more; got {self.budget_params}")
        controller, task = find_controller(self.controller), find_task(self.task)
        history = self._check_files()
        torch.set_num_threads(1)
        console = Console()
        with console.status(f"Growing on {task.name} ..."):
            episode, events = self._grow(task, controller)
            result = episode.finish()
            self._save(episode)
        numbers = {"task": task.name, "controller": controller.name, "seed": self.seed, **asdict(result)}
        told = [{"type": event.event_type, "slot": event.slot_id, **event.payload} for event in events]
        write_json(history, {**numbers, "events": told})
        write_json(self.json, numbers)
        kept = ", ".join(f"{seed.blueprint} in {seed.slot_id} (+{seed.params:,})" for seed in result.kept) or "nothing"
        size, score = result.host_params + result.added_params, 100 * result.test_score
        console.print(f"Kept {kept}: {size:,} parameters, score on test {score:.1f}", highlight=False)
        console.print(f"Network: {self.out} (torch.export.load)\nHistory: {history}", highlight=False, soft_wrap=True)
        return True

    def _check_files(self) -> Path:
        """Refuse files that could not be written in the end; returns the one for the history."""
        history = self.out.with_suffix(".json")
        if history == self.out:
            raise InputError("--out must not end in .json: that name is for the history")
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--out {self.out}: {error.strerror}; name a folder that can be written") from None
        for path in (self.out, history, self.json):
            check_writable(path)
        return history

    def _grow(self, task: "Task", controller: "Controller") -> "tuple[Episode, list[TelemetryEvent]]":
        from esper.kasmina import UNLIMITED
        from esper.nissa import Hub, MemorySink
        from esper.tolaria import Episode, EpisodeSettings

        memory = MemorySink()
        budget = UNLIMITED if self.budget_params is None else self.budget_params
        episode = Episode(task, self.seed, EpisodeSettings(price=self.price, budget=budget), hub=Hub([memory]))
        controller.reset(1, self.seed)
        while not episode.done:
            episode.step(controller.decide(episode.situation))
        return episode, memory.events

    def _save(self, episode: "Episode") -> None:
        import torch

        from esper.kasmina import plain_network

        plain = plain_network(episode.model).eval()
        example = episode.task.splits().val.x[:2]
        shapes = ({0: torch.export.Dim("batch")},)
        torch.export.save(torch.export.export(plain, (example,), dynamic_shapes=shapes), self.out)
