"""A transport without processes: the same messages, as bytes, and a worker that can be lost at will."""

from collections.abc import Callable

from esper.leyline import WorkerError
from esper.tolaria.workers import Command, Reply, Request, ShardWorker
from esper.tolaria.workers.worker import from_bytes, to_bytes


class LocalTransport:
    """Runs its worker in place. `dies_at` is asked for the command at which the worker is to die, once."""

    def __init__(self, dies_at: Callable[[], Command | None] = lambda: None) -> None:
        self._worker: ShardWorker | None = ShardWorker()
        self._dies_at = dies_at
        self._asked: list[bytes] = []

    def send(self, request: Request) -> None:
        self._asked.append(to_bytes(request))

    def receive(self, request: Request) -> Reply:
        asked: Request = from_bytes(self._asked.pop())
        if asked.command is self._dies_at():
            self._worker = None
        if self._worker is None:
            raise WorkerError("it was told to die")
        reply: Reply = from_bytes(to_bytes(self._worker.answer(asked)))
        return reply

    def close(self) -> None:
        self._worker = None


class Fates:
    """Starts local workers; `doom` makes worker 0 die when it is next asked for `command`."""

    def __init__(self) -> None:
        self.doom: Command | None = None
        self.started = 0

    def start(self, timeout: float) -> LocalTransport:
        self.started += 1
        # Worker 0 is the first to be started, and whoever takes its place starts after all others.
        return LocalTransport(self._take if self.started == 1 else lambda: None)

    def _take(self) -> Command | None:
        return self.doom
