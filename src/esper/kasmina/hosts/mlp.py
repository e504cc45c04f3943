"""A multi-layer perceptron."""

import itertools
from dataclasses import dataclass

from torch import nn

from esper.kasmina.hosts.registry import BlockHost, host


@dataclass(frozen=True, slots=True)
class MLPConfig:
    """Sizes of an MLP."""

    inputs: int = 40
    widths: tuple[int, ...] = (64, 64, 64)
    classes: int = 10


@host("mlp", MLPConfig())
class MLPHost(BlockHost):
    """Linear layers with ReLU; inputs `[N, ...]` are flattened."""

    def __init__(self, config: MLPConfig) -> None:
        super().__init__()
        sizes = (config.inputs, *config.widths)
        self.input = nn.Flatten()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(before, after), nn.ReLU()) for before, after in itertools.pairwise(sizes)
        )
        self.head = nn.Linear(sizes[-1], config.classes)
        self.name_parts()
