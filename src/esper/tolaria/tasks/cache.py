"""A folder for data that is generated or fetched once and read many times."""

import io
import logging
import os
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from esper.leyline import InputError, write_atomically

_LOG = logging.getLogger(__name__)

Arrays = dict[str, NDArray[np.generic]]


def data_folder() -> Path:
    """Where data is kept: `$ESPER_DATA`, or `esper` in the user's cache folder."""
    chosen = os.environ.get("ESPER_DATA")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "esper"


def is_cached(name: str) -> bool:
    """Whether arrays are kept under `name`."""
    return (data_folder() / f"{name}.npz").exists()


def cached_arrays(name: str, keys: Collection[str], make: Callable[[], Arrays]) -> Arrays:
    """The arrays `keys` kept under `name`, made and kept first where there are none.

    A file cut short or of another content is made again. It appears under its name only when it is complete.
    """
    path = data_folder() / f"{name}.npz"
    if path.is_file():
        try:
            # Opened here, because numpy leaves a damaged file open.
            with path.open("rb") as file, np.load(file) as stored:
                return {key: stored[key] for key in keys}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            _LOG.warning("%s cannot be read (%s) and is made again", path, error)
    arrays = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        packed = io.BytesIO()
        np.savez(packed, **arrays)  # type: ignore[arg-type]
        write_atomically(path, packed.getvalue())
    except OSError as error:
        reason = f"data cannot be kept in {data_folder()} ({error.strerror})"
        raise InputError(f"{reason}; set ESPER_DATA to a folder that can be written") from None
    return arrays
