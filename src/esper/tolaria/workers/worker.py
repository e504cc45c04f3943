"""The messages between pool and worker, how they become bytes, and what answers them in a worker."""

import io
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from esper.leyline import EsperError, TelemetryEvent, WorkerError
from esper.nissa import Hub, MemorySink
from esper.tolaria.environment import GrowthEnv
from esper.tolaria.records import Shard, Situation


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


EnvFactory = Callable[[Shard, Hub], GrowthEnv]
"""Makes the hosts of a shard; it has to be picklable, as a module's function or a dataclass with `__call__` is."""


class ShardWorker:
    """Answers one request after the other; an error is an answer too, and the worker lives on."""

    def __init__(self) -> None:
        self._env: GrowthEnv | None = None
        self._told = MemorySink()
        self._hub = Hub()

    def answer(self, request: Request) -> Reply:
        try:
            value, error = self._do(request), None
        except Exception as raised:
            value, error = None, _sendable(raised)
        return Reply(request.id, value, error, tuple(self._told.take()))

    def _do(self, request: Request) -> Any:
        # The table of commands; `Command` says what each takes and gives.
        match request.command, request.arguments:
            case Command.OPEN, (factory, shard, least):
                self._hub = Hub([] if least is None else [self._told])
                make: EnvFactory = from_bytes(factory)
                self._env = make(shard, self._hub)
                return self._view()
            case Command.CLOSE, ():
                return self._hosts.close()
            case Command.RESET, (seeds, hosts, least):
                self._hub.least = least
                self._hosts.reset(seeds, hosts=hosts)
                return self._view()
            case Command.STEP, (actions,):
                return self._hosts.step(actions)
            case Command.IDLE, (actions,):
                return self._hosts.idle(actions)
            case Command.RESULTS, ():
                return self._hosts.results()
            case Command.STATE_DICT, ():
                return self._hosts.state_dict()
            case Command.LOAD_STATE_DICT, (state,):
                self._hosts.load_state_dict(state)
                return self._view()
        raise WorkerError(
            f"a worker does not know the command {request.command!r} with {len(request.arguments)} arguments"
        )

    @property
    def _hosts(self) -> GrowthEnv:
        if self._env is None:
            raise WorkerError("a worker must be asked to open before anything else")
        return self._env

    def _view(self) -> View:
        return View(self._hosts.observations, self._hosts.situation)


def _sendable(error: Exception) -> Exception:
    """`error` as it can be raised elsewhere; one that nobody expects brings along where it came from."""
    if not isinstance(error, EsperError):
        error.add_note("in a worker:\n" + "".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return WorkerError("".join(traceback.format_exception(error)))
    return error
