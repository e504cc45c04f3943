"""Growth on disk: one file, written at once or not at all, read without running code."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from esper.leyline import InputError, write_atomically
from esper.nissa import pack_state, read_state

FORMAT = 1
_KIND = "esper growth"


def write_growth(state: dict[str, Any], path: Path) -> None:
    """Write `state` to `path`, all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, pack_state({"kind": _KIND, "format": FORMAT, **state}))


def read_growth(path: Path) -> dict[str, Any]:
    """The state in the file; a missing, damaged or foreign one is one clear error."""
    state = read_state(path, "growth file", "grower.save makes one")
    if state.get("kind") != _KIND:
        raise InputError(f"{path} was not written by grower.save")
    if state.get("format") != FORMAT:
        raise InputError(f"{path} has format {state.get('format')}; this version reads format {FORMAT}")
    return state


def check_like(given: Any, pattern: Mapping[str, Any], place: str) -> None:
    """Refuse `given` unless it has the keys of `pattern`, with values of the same types; None goes with any type.

    What lists and mappings hold, and the shapes of tensors, are left to whoever reads them.
    """
    if not isinstance(given, Mapping) or any(key not in given for key in pattern):
        missing = [key for key in pattern if not isinstance(given, Mapping) or key not in given]
        raise InputError(f"{place} lacks {', '.join(missing)}; it was altered, or written by another version")
    for key, expected in pattern.items():
        value: Any = given[key]
        kinds = (int, float) if isinstance(expected, float) else type(expected)
        if value is None or expected is None:
            continue
        if not isinstance(value, kinds) or isinstance(value, bool) != isinstance(expected, bool):
            wanted, got = type(expected).__name__, type(value).__name__
            raise InputError(f"{key!r} in {place} must be a {wanted}; it is a {got}")
        if isinstance(value, Tensor) and value.dtype != expected.dtype:
            raise InputError(f"{key!r} in {place} must be of {expected.dtype}; it is of {value.dtype}")
