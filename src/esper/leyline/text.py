"""Text that comes from outside and text that is shown: JSON read with limits, and lines that are safe to print."""

import json
from pathlib import Path
from typing import Any

from esper.leyline.checks import InputError

_MOST_LEVELS = 100
_WHOLE_NUMBER_END = 2**63
_LARGEST_FILE = 64 << 20


def printable(text: str) -> str:
    r"""`text` in one line that no terminal obeys: whatever is not printable is written as `\n`, `\x1b` and so on."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def first_line(error: Exception) -> str:
    """What an error says, as far as it fits into a sentence."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def parse_json(text: str, what: str) -> Any:
    """The value of a JSON text; `what` names its origin in the one error for text that cannot be used.

    Whole numbers must fit into 64 bits and containers must not be nested beyond reason, so that what comes back can be
    compared, converted and shown without further care.
    """
    try:
        value = json.loads(text, parse_int=_whole_number)
        if not _is_shallow(value):
            raise RecursionError
    except RecursionError:
        raise InputError(f"{what} is nested more than {_MOST_LEVELS} levels deep") from None
    except ValueError as error:
        raise InputError(f"{what} is not JSON: {error}") from None
    return value


def read_json(path: Path, what: str) -> Any:
    """The value in the JSON file `path`, as `parse_json` reads it; one that is absent or endless is an error too."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(f"{what}: {error.strerror}") from None
    if len(content) > _LARGEST_FILE:
        raise InputError(f"{what} holds more than {_LARGEST_FILE >> 20} MB")
    try:
        return parse_json(content.decode(), what)
    except UnicodeDecodeError as error:
        raise InputError(f"{what} is not JSON: {error}") from None


def _whole_number(digits: str) -> int:
    # The length first: Python refuses to convert thousands of digits, with advice that is not for users.
    if len(digits) > len(str(_WHOLE_NUMBER_END)) + 1 or not -_WHOLE_NUMBER_END <= int(digits) < _WHOLE_NUMBER_END:
        raise ValueError(f"the whole number {digits[:20]}{'...' if digits[20:] else ''} does not fit into 64 bits")
    return int(digits)


def _is_shallow(value: Any) -> bool:
    """Whether containers are nested no deeper than allowed; without recursion, which is what runs out here."""
    level = [value]
    for _ in range(_MOST_LEVELS):
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [inner for item in containers for inner in (item.values() if isinstance(item, dict) else item)]
    return not any(isinstance(item, dict | list) for item in level)
