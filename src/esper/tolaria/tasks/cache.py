"""A folder for data that is generated or fetched once and read many times."""

import logging
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_LOG = logging.getLogger(__name__)

Arrays = dict[str, NDArray[np.generic]]


def data_folder() -> Path:
    """Where data is kept: `$ESPER_DATA`, or `esper` in the user's cache folder."""
    chosen = os.environ.get("ESPER_DATA")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "esper"


def is_cached(name: str) -> bool:
    """Whether arrays are kept under `name`."""
    return (data_folder() / f"{name}.npz").exists()


def cached_arrays(name: str, make: Callable[[], Arrays]) -> Arrays:
    """The arrays kept under `name`, made and kept first where there are none.

    A file cut short is made again. It appears under its name only when it is complete.
    """
    path = data_folder() / f"{name}.npz"
    if path.exists():
        try:
            with np.load(path) as stored:
                return dict(stored)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            _LOG.warning("%s cannot be read (%s) and is made again", path, error)
    arrays = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.stem}.{os.getpid()}.partial.npz")
    np.savez(partial, **arrays)  # type: ignore[arg-type]
    partial.replace(path)
    return arrays
