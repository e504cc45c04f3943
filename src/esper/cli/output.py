"""Writing results for people and for scripts, and checking in advance that they can be written."""

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
"""Larger counts are typing errors."""


def make_console(*, stderr: bool = False) -> "Console":
    """A console that prints text verbatim: no markup, emoji or highlighting in names and data."""
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
    """Refuse, before any work is done, result files that cannot be written."""
    given = [path for path in paths if path is not None]
    for place, path in enumerate(given):
        try:
            _try_to_write(path)
        except (OSError, ValueError, RuntimeError) as error:  # odd names, and links that lead in a circle
            reason = error.strerror if isinstance(error, OSError) else error
            raise InputError(f"{path} cannot be written ({reason}); name a file in an existing folder") from None
        if any(path.resolve() == other.resolve() for other in given[:place]):
            raise InputError(f"{path} is given for two results; use a different file for each")


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


def check_seed(seed: int, count: int = 1) -> None:
    """Refuse a seed, or the first of so many, that random generators do not take."""
    if not 0 <= seed <= _SEED_END - count:
        raise InputError(f"--seed must be 0 or more and below 2^63; got {seed}")


def check_not_empty(option: str, values: Sequence[str]) -> None:
    if not values:
        raise InputError(f"{option} needs at least one name")


def write_json(path: Path | None, data: Any) -> None:
    """Write `data` to `path`, if there is one: all of it, or nothing."""
    if path is not None:
        write_bytes(path, (json.dumps(data, indent=2) + "\n").encode())
