"""What growth costs while nothing grows: empty slots in a forward and backward pass, and a grower in a training loop.

Times are those of this process, not of the clock, and what is compared takes turns, so that other work on the machine
counts less.
"""

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import esper
from esper.kasmina import build_host, graft

ROUNDS = 100
BATCHES = 50


def seconds(work: Callable[[], Any]) -> float:
    """How long `work` takes this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def report(name: str, plain: Callable[[], Any], others: dict[str, Callable[[], Any]]) -> None:
    """Let all take turns; print the median of the ratios to the plain one in each turn."""
    turns = [[seconds(work) for work in (plain, *others.values())] for _ in range(ROUNDS)][5:]
    milliseconds = 1e3 * statistics.median(turn[0] for turn in turns)
    print(f"{name}: {milliseconds:.2f} ms")
    for place, other in enumerate(others, start=1):
        print(f"  {other}: {statistics.median(turn[place] / turn[0] for turn in turns):.3f} times that")


def compare_slots() -> None:
    """Forward and backward of a convolutional network, with and without slots."""
    x = torch.randn(32, 3, 32, 32)
    plain, host = build_host("conv2d"), build_host("conv2d")
    grafted = graft(host, at=host.slot_sites, example=x)
    work = {"with three empty slots": lambda: grafted(x).sum().backward()}
    report("a pass of a convolutional network", lambda: plain(x).sum().backward(), work)


class Loop:
    """Epochs of a tiny MLP, its validation included: where what growth costs shows most."""

    def __init__(self, **settings: Any) -> None:
        torch.manual_seed(0)
        self.x, self.y = torch.randn(BATCHES * 32, 32), torch.randint(10, (BATCHES * 32,))
        self.model: nn.Module = nn.Sequential(
            nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.step: Callable[[], Any] = self.validate
        if settings:
            grower = esper.Grower(
                self.model,
                at=["1", "3"],
                example=self.x[:4],
                optimizer=self.optimizer,
                evaluate=self.accuracy,
                **settings,
            )
            self.model, self.step = grower.model, grower.step

    def accuracy(self, model: nn.Module) -> Tensor:
        """What the grower measures."""
        with torch.no_grad():
            right: Tensor = model(self.x).argmax(-1) == self.y
        return right.float().mean()

    def validate(self) -> None:
        """As a loop without growth does it."""
        self.model.eval()
        self.accuracy(self.model)
        self.model.train()

    def epoch(self) -> None:
        """Train and validate, or let the grower validate."""
        for x, y in zip(self.x.split(32), self.y.split(32), strict=True):
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
        self.step()


def compare_growers() -> None:
    """A loop without a grower, with one that never decides, and with one that has no budget."""
    never, broke = Loop(controller="never"), Loop(budget=esper.Budget(params=0))
    work = {"controller='never'": never.epoch, "a heuristic without budget": broke.epoch}
    report(f"an epoch of {BATCHES} batches of a tiny MLP", Loop().epoch, work)


def main() -> None:
    """Both comparisons."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "no seed fits into the budget")
    compare_slots()
    compare_growers()


if __name__ == "__main__":
    main()
