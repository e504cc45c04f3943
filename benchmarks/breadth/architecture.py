"""What an architecture is here: a way to build it, and a batch for it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture with random weights and small inputs."""

    name: str
    kind: str
    build: Callable[[], nn.Module]
    example: Callable[[], Any]
    at: Any = "auto"
    """Where it grows; names only where nothing can be proposed."""
