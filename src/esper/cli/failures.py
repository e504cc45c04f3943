"""Turning whatever goes wrong into one sentence and an exit code."""

import io
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from esper.leyline import EsperError, InputError, printable

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
_LONGEST = 2000
_OUT_OF_MEMORY = ("allocate memory", "out of memory", "failed to map segment", "can't start new thread")
"""What torch, DuckDB, the dynamic loader and Python say when memory is short, each with an exception of its own."""


def exit_code_of(work: Callable[[], bool], *, debug: bool) -> int:
    """Do `work` and flush what it printed; the exit code, after one sentence about what went wrong.

    `debug` shows the traceback too. When whoever read the output has gone, as `head` does, nothing is said.
    """
    _prepare_streams()
    with _ending_in_order():
        code = _attempt(work, debug) or _attempt(_flush, debug)
    try:
        _flush()
    except OSError:
        _drop_output()
    return code


def _attempt(work: Callable[[], bool], debug: bool) -> int:
    try:
        return DONE if work() else FAILED
    except SystemExit as stop:  # by the parser, after --help or words it does not know
        return stop.code if isinstance(stop.code, int) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if debug:
            _write(traceback.format_exc())
        if not (isinstance(error, BrokenPipeError) and _reader_has_gone()):
            _write(f"esper: {_shortened(printable(_explain(error)))}\n")
        return BAD_INPUT if isinstance(error, InputError) else FAILED


def _explain(error: Exception) -> str:
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, EsperError):
        return str(error)
    if isinstance(error, MemoryError) or any(word in str(error).lower() for word in _OUT_OF_MEMORY):
        return f"there is not enough memory for this ({said or 'no details'}); free some, or ask for less at once"
    if isinstance(error, OSError):
        place = "the output" if error.filename is None else error.filename
        return f"{place} cannot be read or written ({error.strerror or said})"
    return (
        f"internal error, {type(error).__name__}: {said or 'no details'}; "
        "please report it with what --debug shows for the same command"
    )


def _shortened(text: str) -> str:
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]} ... {text[-half:]}"


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Inside, SIGTERM unwinds the stack like an exception, so that temporary files and child processes go too."""

    def end(number: int, frame: object) -> None:  # noqa: ARG001
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        yield
        return
    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _prepare_streams() -> None:
    """Let everything be printed: to nowhere if a stream was closed, and names of files that are no proper text too."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # open as long as the process runs
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _write(text: str) -> None:
    with suppress(OSError, ValueError):
        sys.stderr.write(text)


def _flush() -> bool:
    sys.stdout.flush()
    return True


def _reader_has_gone() -> bool:
    """Whether it is the output that is broken, and not some other pipe."""
    output = select.poll()
    try:
        output.register(sys.stdout.fileno(), select.POLLOUT)
    except (OSError, ValueError):  # no real file
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))


def _drop_output() -> None:
    """Send what is left of the output nowhere: the interpreter flushes once more at its end, and would complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
