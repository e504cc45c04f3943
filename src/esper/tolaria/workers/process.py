"""Transports: how a worker is started and reached. Here, as a process of this machine."""

import multiprocessing
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from threading import Timer
from typing import Protocol

import torch

from esper.leyline import WorkerError
from esper.tolaria.workers.worker import Command, Reply, Request, ShardWorker, from_bytes, to_bytes

_FAREWELL_SECONDS = 5.0
"""How long a worker that was asked to close may take before it is killed."""


class Transport(Protocol):
    """Reaches one worker. Whoever is to start workers elsewhere, as Ray would, implements this."""

    def send(self, request: Request) -> None:
        """Ask, without waiting; raises `WorkerError` if the worker is lost."""

    def receive(self, request: Request) -> Reply:
        """The reply to `request`, the last one sent; raises `WorkerError` if the worker is lost."""

    def close(self) -> None:
        """End the worker, whatever state it is in."""


class ProcessTransport:
    """A worker in a process of its own; one that does not answer within `timeout` seconds is killed."""

    def __init__(self, timeout: float) -> None:
        context = _context()
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), daemon=True, name="esper-worker")
        try:
            self._process.start()
        except (EOFError, OSError) as error:
            self._connection.close()
            raise WorkerError(f"its process could not be started ({type(error).__name__}: {error})") from error
        finally:
            # The pipe ends for us when the worker dies only if nobody else holds its end.
            theirs.close()
        self._timeout = timeout
        self._timed_out = False
        self._whole = True
        self._watchdog = Timer(0, lambda: None)

    def send(self, request: Request) -> None:
        if not self._whole:
            raise WorkerError("a message was interrupted half-way")
        self._watch(self._timeout, self._expire)
        # Whoever interrupts the next line leaves half a message behind, and nothing more can be sent.
        try:
            self._whole = False
            self._connection.send_bytes(to_bytes(request))
            self._whole = True
        except OSError as error:
            raise WorkerError(self._reason()) from error

    def receive(self, request: Request) -> Reply:
        """Wait for the reply; replies to earlier requests are passed over."""
        try:
            while True:
                self._connection.poll(None)  # an interrupt while waiting leaves the messages whole
                self._whole = False
                reply: Reply = from_bytes(self._connection.recv_bytes())
                self._whole = True
                if reply.id == request.id:
                    return reply
        except (EOFError, OSError) as error:
            raise WorkerError(self._reason()) from error
        finally:
            self._watchdog.cancel()

    def close(self) -> None:
        self._watchdog.cancel()
        if self._whole and self._process.is_alive() and not self._connection.closed:
            self._say_farewell()
        self._process.kill()
        self._process.join()
        self._connection.close()

    def _say_farewell(self) -> None:
        self._watch(_FAREWELL_SECONDS, self._process.kill)
        try:
            self._connection.send_bytes(to_bytes(Request(-1, Command.CLOSE)))
            self._process.join(_FAREWELL_SECONDS)
        except OSError:
            pass  # it is gone already
        finally:
            self._watchdog.cancel()

    def _watch(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something, from another thread, if the watchdog is not cancelled in time."""
        self._watchdog.cancel()
        self._watchdog = Timer(seconds, act)
        self._watchdog.daemon = True
        self._watchdog.start()

    def _expire(self) -> None:
        # Ends the pipe too, and with it whatever waits for it, even in the middle of a message.
        self._timed_out = True
        self._process.kill()

    def _reason(self) -> str:
        self._process.join(_FAREWELL_SECONDS)
        if self._timed_out:
            return f"it did not answer within {self._timeout:g} seconds"
        return f"its process ended with code {self._process.exitcode}"


def _context() -> ForkServerContext | SpawnContext:
    """How processes are started. A fork of this one would copy locks that other threads hold, torch's among them."""
    if sys.platform != "linux":  # where libraries of the system may not survive a fork
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # A server without threads that imports once what is imported here; the first worker starts it.
    ours = [name for name in list(sys.modules) if name.startswith("esper.")]
    context.set_forkserver_preload(["esper.tolaria.workers.fork_server", *ours])
    return context


def serve(connection: Connection) -> None:
    """What the process of a worker does: answer until it is told to close or nobody is there to ask."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for whoever asks; workers end when told
    torch.set_num_threads(1)
    worker = ShardWorker()
    try:
        while True:
            request: Request = from_bytes(connection.recv_bytes())
            connection.send_bytes(to_bytes(worker.answer(request)))
            if request.command is Command.CLOSE:
                return
    except (EOFError, OSError):
        return
