"""A small model, data, loop and controllers that several tests of growing share."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import esper
from esper.leyline import Blend, Op
from esper.tolaria import Situation

Action = tuple[int, int, int, int]
WAIT: Action = (0, 0, 0, Op.WAIT)


def germinate(slot: int, blueprint: int = 3, blend: Blend = Blend.LINEAR) -> Action:
    return (slot, blueprint, blend, Op.GERMINATE)


def fossilize(slot: int) -> Action:
    return (slot, 0, 0, Op.FOSSILIZE)


def cull(slot: int) -> Action:
    return (slot, 0, 0, Op.CULL)


class Script:
    """A controller that does what it is told, one action per step, then waits."""

    name = "script"

    def __init__(self, actions: Sequence[Action]) -> None:
        self._actions = list(actions)
        self._next = 0

    def reset(self, num_hosts: int, seed: int) -> None:
        self._next = 0

    def decide(self, situation: Situation) -> Tensor:
        self._next += 1
        return torch.tensor([self._actions[self._next - 1] if self._next <= len(self._actions) else WAIT])

    def state_dict(self) -> dict[str, int]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._next = state["next"]


LIFE: list[Action] = [germinate(0), *[WAIT] * 5, fossilize(0)]
"""Germinate, let the seed train and blend, and keep it."""


def make_mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def make_data(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(16, 6, generator=generator), torch.randint(3, (16,), generator=generator)


def accuracy(model: nn.Module) -> float:
    x, y = make_data(1)
    with torch.no_grad():
        return float((model(x).argmax(-1) == y).float().mean())


def steady(model: nn.Module) -> float:
    """A score that no seed moves by as much as a point, so that every seed rises to alpha 1 without holding."""
    with torch.no_grad():
        return 0.5 + 1e-3 * float(model(make_data(1)[0]).tanh().mean())


def loss_of(model: nn.Module) -> float:
    x, y = make_data(1)
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(x), y))


def make_grower(**overrides: Any) -> esper.Grower:
    """A grower of an MLP with slots behind its hidden layers, that only waits."""
    model = overrides.pop("model", None) or make_mlp()
    optimizer = overrides.pop("optimizer", None) or torch.optim.AdamW(model.parameters(), lr=1e-2)
    settings: dict[str, Any] = {
        "at": ["1", "3"],
        "example": make_data()[0],
        "evaluate": steady,
        "controller": Script([]),
        "seed": 0,
        **overrides,
    }
    return esper.Grower(model, optimizer=optimizer, **settings)


def train(grower: esper.Grower, steps: int = 2, forward: Callable[[Tensor], Tensor] | None = None) -> float:
    """Some optimiser steps on data drawn from torch's dice; returns the last loss."""
    optimizer = grower.grafted.optimizer
    assert optimizer is not None
    grower.model.train()
    x, y = make_data()
    loss = torch.zeros(())
    for _ in range(steps):
        rows = torch.randperm(len(x))[:8]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy((forward or grower.model)(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
    return loss.item()


def grow(grower: esper.Grower, epochs: int) -> list[esper.Decision]:
    decisions = []
    for _ in range(epochs):
        train(grower)
        decisions.append(grower.step())
    return decisions


def assert_same(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)
