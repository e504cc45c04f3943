"""Commands that start at once: a process that has imported everything forks one `esper` command after the other.

Importing torch takes seconds, and a kill in those seconds tests nothing of ours.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Self

_SERVE = "from tests.simic.training.zygote import serve; serve()"
_PATIENCE = 120.0
"""Seconds after which a command counts as hanging and is killed."""


class Running:
    """A command that was started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def kill(self, number: signal.Signals) -> bool:
        """Send a signal; false if the command was over already."""
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def kill_worker(self) -> bool:
        """Kill the first worker that the command has; false if there is none now."""
        for server in _children(self.pid):  # workers are forked from a server that the command starts
            for worker in _children(server):
                os.kill(worker, signal.SIGKILL)
                return True
        return False


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listed.read_text().split()] if listed.exists() else []


class Zygote:
    """Starts commands in processes of their own, one at a time; what they print goes to `log`."""

    def __init__(self, log: Path) -> None:
        self.log = log
        command = [sys.executable, "-c", _SERVE, str(log)]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._read() == "ready"

    def start(self, *arguments: str) -> Running:
        """Begin `esper ARGUMENTS`."""
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(arguments) + "\n")
        self._server.stdin.flush()
        return Running(int(self._read()))

    def wait(self, running: Running) -> int:
        """The exit code of the command once it is over; minus the number of the signal that killed it, if one did."""
        watchdog = Timer(_PATIENCE, running.kill, [signal.SIGKILL])
        watchdog.start()
        try:
            return int(self._read())
        finally:
            watchdog.cancel()

    def run(self, *arguments: str) -> int:
        """`esper ARGUMENTS` from beginning to end."""
        return self.wait(self.start(*arguments))

    def _read(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(_PATIENCE)
        self._server.stdout.close()


def serve() -> None:
    """What the forking process does: for each line of arguments it tells the number of a process, then how it ended."""
    import torch

    import esper.api  # noqa: F401  # everything that a command would import
    from esper.cli import main
    from esper.tasks import find_task
    from tests.worlds import TINY

    torch.set_num_threads(1)
    for task in (TINY, "digits"):
        find_task(task).splits()
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    answers = os.fdopen(os.dup(1), "w")
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            answers.close()
            os.setpgrp()  # an interrupt of the tests is not theirs
            for stream in (1, 2):
                os.dup2(log, stream)
            main(json.loads(line))
        print(pid, file=answers, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
