"""Growth on disk: one file, written at once or not at all, read without running code."""

from pathlib import Path
from typing import Any

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
