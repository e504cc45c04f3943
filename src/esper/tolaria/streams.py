"""Random streams: each host has its own, so that no neighbour, controller or telemetry level can disturb it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import torch
from torch import Tensor

from esper.kasmina.merit import VARIANTS


@dataclass(frozen=True, slots=True)
class Streams:
    """The random streams of one host, all derived from one seed."""

    init: torch.Generator
    """Initial weights of the host."""
    shuffle: torch.Generator
    """Order of its minibatches."""
    seeds: torch.Generator
    """Initial weights of its seeds."""
    price: torch.Generator
    """What its parameters cost, where that is drawn."""
    merit: torch.Generator
    """Which of the would-be seeds it has; nothing is drawn from it, so that they stay the same all along."""

    @classmethod
    def from_seed(cls, seed: int) -> Self:
        """Streams that are independent of each other and of those of any other seed."""
        states = np.random.SeedSequence(seed).generate_state(len(fields(cls)), np.uint64)
        return cls(*(torch.Generator().manual_seed(int(state >> np.uint64(1))) for state in states))

    @property
    def variant(self) -> int:
        """Which variant of would-be seeds the host has."""
        return self.merit.initial_seed() % VARIANTS

    def state_dict(self) -> dict[str, Tensor]:
        return {spec.name: getattr(self, spec.name).get_state() for spec in fields(self)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for spec in fields(self):
            getattr(self, spec.name).set_state(state[spec.name])


class BatchStream:
    """Minibatches of a host's own shuffled passes over the training split, endless across epochs."""

    def __init__(self, num_samples: int, batch_size: int, generator: torch.Generator) -> None:
        self._num_samples = num_samples
        self._batch_size = batch_size
        self._generator = generator
        self._order = torch.empty(0, dtype=torch.int64)
        self._used = 0

    def __next__(self) -> Tensor:
        """Indices of the next minibatch; what is left of a pass and too small is skipped."""
        if self._used + self._batch_size > len(self._order):
            self._order = torch.randperm(self._num_samples, generator=self._generator)
            self._used = 0
        rows = self._order[self._used : self._used + self._batch_size]
        self._used += self._batch_size
        return rows

    @property
    def latest(self) -> Tensor:
        return self._order[self._used - self._batch_size : self._used]

    def take(self, count: int) -> Tensor:
        """The next `count` minibatches, `[count, B]`."""
        return torch.stack([next(self) for _ in range(count)])

    def state_dict(self) -> dict[str, Tensor]:
        """The pass under way and how far it has come; the generator is saved with its streams."""
        return {"order": self._order, "used": torch.tensor(self._used)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._order, self._used = state["order"].clone(), int(state["used"])


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Inside, torch's random state on the CPU is a fresh one drawn from `generator`; outside it is untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        yield
