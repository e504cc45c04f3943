"""`esper evaluate`: how good a controller is, on the test split."""

from dataclasses import dataclass
from pathlib import Path

from esper.cli.output import check_seed, check_writable, write_json
from esper.leyline import DEFAULT_PRICE, InputError


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Run controllers deterministically over the same seeds; test accuracy, parameters and objective with intervals."""

    controller: tuple[str, ...] = ("never", "heuristic")
    """Who decides: never, random, schedule, heuristic, a run folder or a checkpoint; the first is the yardstick."""
    task: tuple[str, ...] = ("mnist1d", "mnist1d-shuffled")
    """What to grow on; see `esper tasks`."""
    episodes: int = 10
    """Episodes of each task."""
    seed: int = 0
    """First seed; the others follow it."""
    price: float = DEFAULT_PRICE
    """What adding as many parameters as the host has costs."""
    executor: str = "auto"
    """loop, stacked, or auto, which times both for a moment."""
    json: Path | None = None
    """Write the numbers to this file."""

    def run(self) -> bool:
        """Run the episodes and print the table."""
        import torch
        from rich import box
        from rich.console import Console
        from rich.progress import Progress
        from rich.table import Table

        from esper.api import evaluate, find_controller
        from esper.tolaria import EpisodeSettings, find_task

        check_writable(self.json)
        check_seed(self.seed)
        if self.episodes < 1:
            raise InputError(f"--episodes must be 1 or more; got {self.episodes}")
        for task in self.task:
            find_task(task)
        controllers = {name: find_controller(name) for name in self.controller}
        if not controllers:
            raise InputError("--controller must name at least one controller")
        settings = EpisodeSettings(price=self.price)
        torch.set_num_threads(1)
        seeds = range(self.seed, self.seed + self.episodes)
        first = self.controller[0]
        heads = ("task", "controller", "test accuracy", "objective", "parameters", f"objective minus {first}")
        table = Table(*heads, box=box.SIMPLE)
        numbers = []
        with Progress(console=Console(stderr=True), transient=True) as progress:
            for task in self.task:
                done = {}
                for name, controller in controllers.items():
                    bar = progress.add_task(f"{task}: {name}", total=self.episodes)
                    done[name] = evaluate(
                        controller, task, seeds, settings=settings, executor=self.executor,
                        progress=lambda count, bar=bar: progress.update(bar, completed=count),  # type: ignore[misc]
                    )  # fmt: skip
                    gain = "" if name == first else done[name].gain_over(done[first]).show()
                    row = done[name]
                    table.add_row(
                        task, name, row.test_accuracy.show(), row.objective.show(), f"{row.parameters.mean:,.0f}", gain
                    )
                    compared = {} if name == first else {f"gain_over_{first}": row.gain_over(done[first]).to_dict()}
                    numbers.append({**row.to_dict(), "controller": name, **compared})
        Console().print(table)
        write_json(self.json, _as_json(numbers))
        return True


def _as_json(numbers: "list[dict[str, object]]") -> object:
    """One controller on one task gives its numbers themselves; more give a list of them."""
    return numbers[0] if len(numbers) == 1 else {"evaluations": numbers}
