"""Random streams: each host has its own, so that no neighbour, controller or telemetry level can disturb it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Streams:
    """The random streams of one host, all derived from one seed."""

    init: torch.Generator
    """Initial weights of the host."""
    shuffle: torch.Generator
    """Order of its minibatches."""
    seeds: torch.Generator
    """Initial weights of its seeds."""

    @classmethod
    def from_seed(cls, seed: int) -> Self:
        """Streams that are independent of each other and of those of any other seed."""
        states = np.random.SeedSequence(seed).generate_state(3, np.uint64)
        return cls(*(torch.Generator().manual_seed(int(state >> np.uint64(1))) for state in states))


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Inside, torch's global random state is a fresh one drawn from `generator`; outside it is untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        yield
