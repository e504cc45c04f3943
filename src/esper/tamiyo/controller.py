"""The protocol that every controller follows, learned or not."""

from typing import Protocol

import torch
from torch import Tensor

from esper.leyline import HEAD_NAMES
from esper.tolaria import Situation


class Controller(Protocol):
    """Decides, step by step, for N hosts at once."""

    name: str

    def reset(self, num_hosts: int, seed: int) -> None:
        """Forget everything: a new episode of `num_hosts` hosts begins. Randomness comes from `seed` alone."""

    def decide(self, situation: Situation) -> Tensor:
        """One legal action per host, `[N, 4]` in `HEAD_NAMES` order."""


def wait(num_hosts: int) -> Tensor:
    return torch.zeros((num_hosts, len(HEAD_NAMES)), dtype=torch.int64)
