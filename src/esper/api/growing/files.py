"""Growth on disk: one file, written at once or not at all, read without running code."""

import os
from pathlib import Path
from typing import Any

import torch

from esper.leyline import InputError

FORMAT = 1
_KIND = "esper growth"


def write_growth(state: dict[str, Any], path: Path) -> None:
    """Write `state` to a file beside `path`, then put it in place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        torch.save({"kind": _KIND, "format": FORMAT, **state}, partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_growth(path: Path) -> dict[str, Any]:
    """The state in the file; a missing, damaged or foreign one is one clear error."""
    if not path.is_file():
        raise InputError(f"there is no file {path}; grower.save makes one")
    try:
        state: Any = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        raise InputError(f"{path} is damaged or was not written by grower.save") from error
    if not isinstance(state, dict) or state.get("kind") != _KIND:
        raise InputError(f"{path} was not written by grower.save")
    if state["format"] != FORMAT:
        raise InputError(f"{path} has format {state['format']}; this version reads format {FORMAT}")
    return state
