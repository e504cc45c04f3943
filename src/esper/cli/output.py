"""Writing results for people and for scripts, and refusing beforehand what could not be written in the end."""

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.leyline import EsperError, InputError, printable, write_atomically

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column

_SEED_END = 2**63
MOST = 2**31 - 1
"""Counts beyond this are typing errors, and nothing that counts is made for them."""


def make_console(*, stderr: bool = False) -> "Console":
    """A console that prints text as it is: names and data are never taken for markup, emoji or numbers to colour."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def print_table(columns: "Sequence[str | Column]", rows: "Iterable[Sequence[str]]", title: str | None = None) -> None:
    from rich import box
    from rich.table import Table

    table = Table(*columns, title=title, box=box.SIMPLE)
    for row in rows:
        table.add_row(*row)
    make_console().print(table)


def say(*lines: str) -> None:
    """Print lines, unwrapped so that paths can be copied."""
    console = make_console()
    for line in lines:
        console.print(printable(line), soft_wrap=True)


def check_writable(*paths: Path | None) -> None:
    """Refuse, before any work is done, result files that could not be written in the end."""
    given = [path for path in paths if path is not None]
    for place, path in enumerate(given):
        try:
            _try_to_write(path)
        except (OSError, ValueError, RuntimeError) as error:  # odd names, and links that lead in a circle
            reason = error.strerror if isinstance(error, OSError) else error
            raise InputError(f"{path} cannot be written ({reason}); name a file in an existing folder") from None
        if any(path.resolve() == other.resolve() for other in given[:place]):
            raise InputError(f"{path} is named for two results; give each a file of its own")


def _try_to_write(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(None, "Is a directory")
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(None, "Permission denied")
    if not _is_special(path):
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            pass


def make_folder(option: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{option} {folder}: {reason}; name a folder that can be written") from None


def write_bytes(path: Path, data: bytes) -> None:
    """Write all of `data` to `path`, or nothing; a pipe or device is written to as it is."""
    try:
        if _is_special(path):
            path.write_bytes(data)
        else:
            write_atomically(path.resolve(), data)  # a link that somebody names is to stay one
    except OSError as error:
        raise EsperError(f"{path} cannot be written ({error.strerror}); nothing of it was kept") from None


def _is_special(path: Path) -> bool:
    """Whether `path` is a pipe or a device, which is written to and not replaced."""
    return path.exists() and not path.is_file()


def check_count(option: str, value: int, least: int = 1, most: int = MOST) -> None:
    if not least <= value <= most:
        allowed = f"{least} or more" if value < least else f"at most {most}"
        raise InputError(f"{option} must be {allowed}; got {value}")


def check_budget(params: int | None) -> int:
    """The most parameters that growth may add: no limit if none is given."""
    from esper.kasmina import UNLIMITED

    if params is None:
        return UNLIMITED
    check_count("--budget-params", params, least=0, most=UNLIMITED)
    return params


def check_seed(seed: int) -> None:
    if not 0 <= seed < _SEED_END:
        raise InputError(f"--seed must be 0 or more and below 2^63; got {seed}")


def write_json(path: Path | None, data: Any) -> None:
    """Write `data` to `path`, if there is one: all of it, or nothing."""
    if path is not None:
        write_bytes(path, (json.dumps(data, indent=2) + "\n").encode())
