"""Imported by the server that workers are forked from, and by no other process: it tidies up behind the server."""

import atexit
import os
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path


def _remove_socket(server: int) -> None:
    """Remove the server's socket and its folder, which a process that was killed leaves behind."""
    address = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]
    if os.getpid() == server and address:
        with suppress(OSError):  # gone already, or shared with another server
            Path(address).unlink(missing_ok=True)
            Path(address).parent.rmdir()


atexit.register(_remove_socket, os.getpid())
