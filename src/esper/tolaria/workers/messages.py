"""What a pool and its workers say to each other, and how it becomes bytes."""

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from esper.leyline import TelemetryEvent
from esper.tolaria.situation import Situation


class Command(StrEnum):
    """What a worker can be asked for."""

    OPEN = "open"
    """Factory (as bytes), shard, least severity of events or None → `View`: make the hosts; always the first."""
    RESET = "reset"
    """Seeds, hosts of the shard, least severity of events → `View`: begin episodes."""
    STEP = "step"
    """`actions [n, 4]` → `Step`."""
    IDLE = "idle"
    """`actions [n, 4]` → `Step`: answer as if a step were taken in which nothing happened."""
    RESULTS = "results"
    """→ a list of `EpisodeResult`."""
    STATE_DICT = "state_dict"
    """→ everything that going on needs."""
    LOAD_STATE_DICT = "load_state_dict"
    """State → `View`."""
    CLOSE = "close"
    """→ nothing; always the last."""


@dataclass(frozen=True, slots=True)
class Request:
    """One thing asked of a worker."""

    id: int
    """Returned with the reply, so that the reply to a question that nobody waits for any more is known as such."""
    command: Command
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request: a value or an error."""

    id: int
    value: Any = None
    error: Exception | None = None
    events: tuple[TelemetryEvent, ...] = ()
    """What was reported meanwhile; hosts are counted from the first of the shard."""


@dataclass(frozen=True, slots=True)
class View:
    """What is known of the hosts of a shard."""

    observations: Tensor
    situation: Situation


class _Pickler(pickle.Pickler):
    """Tensors as arrays: an order of magnitude faster than torch's own way, and no shared memory left behind."""

    def reducer_override(self, value: Any) -> tuple[Callable[..., Tensor], tuple[Any, ...]] | Any:
        # Not of subclasses, such as parameters, which have to stay what they are.
        if type(value) is Tensor:
            return torch.from_numpy, (value.detach().numpy(force=True),)
        return NotImplemented


def to_bytes(message: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(message)
    return file.getvalue()


def from_bytes(data: bytes) -> Any:
    """The inverse of `to_bytes`; for bytes of one's own workers only."""
    return pickle.loads(data)
