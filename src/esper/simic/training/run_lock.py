"""One process per run folder: a lock that the system takes back when its holder dies, however it dies."""

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from esper.leyline import InputError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_LOG = logging.getLogger(__name__)
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_LOCKED_BYTE = 1 << 30
"""Where msvcrt locks a byte: behind the holder's number, which others must be able to read."""
_LONGEST_PID = 20


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path` meanwhile; if another process does, refuse in a sentence that names it.

    The file stays, because removing it while others wait for it would let two of them in. What counts is the lock, not
    the file: one that a dead process left is no obstacle.
    """
    handle = _open(path)
    try:
        if not _take(handle, path):
            raise InputError(
                f"{path.parent} is in use by {_holder(handle)}; wait until that has ended, or end it with the signal "
                "TERM, which saves first, or name another folder with --out"
            )
        with suppress(OSError):  # the number is there for messages only
            os.ftruncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
        try:
            yield
        finally:
            with suppress(OSError):
                os.ftruncate(handle, 0)
    finally:
        os.close(handle)  # ends the lock too


def _open(path: Path) -> int:
    try:
        # A link that somebody planted under this name is not followed.
        return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        raise InputError(
            f"{path.parent} cannot be written ({error.strerror}); make it writable, or name another folder with --out"
        ) from None


def _take(handle: int, path: Path) -> bool:
    """Lock without waiting; False if another process holds the lock."""
    if sys.platform == "win32":
        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(handle, 0, os.SEEK_SET)
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        _LOG.warning("%s is on a file system without locks: see to it that no other process trains there", path.parent)
    return True


def _holder(handle: int) -> str:
    text = b""
    with suppress(OSError):
        text = os.read(handle, _LONGEST_PID)
    return f"process {text.decode()}" if text.isdigit() else "another process"
