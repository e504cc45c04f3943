"""The `esper` command: parse the line, run the command, turn any failure into one sentence and an exit code."""

import io
import os
import re
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from typing import Annotated, NoReturn

import tyro

from esper.cli.bench import Bench
from esper.cli.blueprints import Blueprints
from esper.cli.data import Data
from esper.cli.demo import Demo
from esper.cli.doctor import Doctor
from esper.cli.evaluate import Evaluate
from esper.cli.grow import Grow
from esper.cli.pack import Pack
from esper.cli.search import Search
from esper.cli.sql import Sql
from esper.cli.tasks import Tasks
from esper.cli.train import Train, base_config, full_names
from esper.leyline import EsperError, InputError, printable

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
_LONGEST = 2000
_OUT_OF_MEMORY = ("allocate memory", "out of memory", "failed to map segment", "can't start new thread")
"""Messages of torch, DuckDB, the dynamic loader and Python when memory is short; each has its own exception."""
_DEBUG = "--debug"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = "╭╮╰╯│─┌┐└┘├┤ "
_OPTION = re.compile(r"--[\w-]+")
_REFUSED = re.compile(r"error parsing [\w.]+: ")
"""Precedes the message of a record that refused a value."""
_MEANT, _FOOTER = "Perhaps you meant", "For full helptext"


@dataclass(frozen=True, slots=True)
class Esper:
    """Grow neural networks while they train."""

    command: Annotated[
        Bench | Blueprints | Data | Demo | Doctor | Evaluate | Grow | Pack | Search | Sql | Tasks | Train,
        tyro.conf.arg(name=""),
    ]
    debug: Annotated[bool, tyro.conf.CascadeSubcommandArgs, tyro.conf.FlagCreatePairsOff] = False
    """Show the traceback of an error; allowed anywhere on the line."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run `esper` and exit: 0 done, 1 failed, 2 bad input, 130 interrupted, 143 terminated."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    sys.exit(exit_code_of(lambda: _parse(arguments).command.run(), debug=_DEBUG in arguments))


def _parse(arguments: list[str]) -> Esper:
    # The options of `train` override those of a preset, a file or a run, if one is given.
    begin: Esper | None = None
    if "train" in arguments:
        arguments = full_names(arguments)
        begin = Esper(Train(base_config(arguments)))
    options = (tyro.conf.OmitSubcommandPrefixes, tyro.conf.EnumChoicesFromValues)
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            parsed = tyro.cli(Esper, args=arguments, prog="esper", config=options, default=begin)
            assert isinstance(parsed, Esper)
            return parsed
    except SystemExit as stop:
        if stop.code != BAD_INPUT:  # after --help, or by a signal
            raise
        raise InputError(in_one_sentence(complaint.getvalue())) from None


def in_one_sentence(complaint: str) -> str:
    """The parser's framed message as one sentence: what is wrong, what may have been meant, where help is."""
    _, *sections = _sections(complaint) or [[]]
    said, hints, footer = [], [], ""
    for section in sections:
        text = " ".join(section)
        if text.startswith(_MEANT):
            hints = [found.group() for line in section if (found := _OPTION.match(line))]
        elif text.startswith(_FOOTER):
            footer = text.removeprefix(_FOOTER).strip(" ,")
        elif not text.startswith("Argument helptext"):
            said.append(_REFUSED.sub("", text[0].lower() + text[1:].rstrip(".")))
    if hints:
        said.append(f"perhaps you meant {', '.join(dict.fromkeys(hints))}")
    return "; ".join([*said, footer]) if footer else " ".join(complaint.split())


def _sections(complaint: str) -> list[list[str]]:
    """The lines of a frame without the frame: its title, and what stands between rules."""
    sections: list[list[str]] = [[]]
    for line in _COLOURS.sub("", complaint).splitlines():
        text = line.strip(_FRAME)
        if line.strip("│ ") and not text.strip("-"):
            sections.append([])
        elif text:
            sections[-1].append(text)
            if "╭" in line:  # the title is part of the frame
                sections.append([])
    return [section for section in sections if section]


def exit_code_of(work: Callable[[], bool], *, debug: bool) -> int:
    """Run `work` and flush its output; an error becomes one sentence on stderr, with `debug` after its traceback.

    If the reader of a pipe has gone, as `head` does, nothing is said.
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
        return f"out of memory ({said or 'no details'}); free some, or ask for less at once"
    if isinstance(error, OSError):
        place = "the output" if error.filename is None else error.filename
        return f"{place} cannot be read or written ({error.strerror or said})"
    return (
        f"internal error, {type(error).__name__}: {said or 'no details'}; "
        "please report it with the output of the same command with --debug"
    )


def _shortened(text: str) -> str:
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]} ... {text[-half:]}"


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Inside, SIGTERM raises SystemExit, so that temporary files and child processes are cleaned up."""

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
    """Make printing safe: closed streams become /dev/null, and file names that are not valid text are escaped."""
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
    """Whether stdout is the broken pipe, and not some other one."""
    output = select.poll()
    try:
        output.register(sys.stdout.fileno(), select.POLLOUT)
    except (OSError, ValueError):  # no real file
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))


def _drop_output() -> None:
    """Discard what is left of the output: the interpreter flushes once more at exit, and would complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
