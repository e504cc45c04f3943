"""A folder for data that is generated or fetched once and read many times."""

import io
import logging
import os
import warnings
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from esper.leyline import InputError, printable, remove_partial_files, write_atomically

_STALE_SECONDS = 3600
"""Files half-written for so long were left by a process that was killed; younger ones may belong to another one."""
_LOG = logging.getLogger(__name__)

Arrays = dict[str, NDArray[np.generic]]


def data_folder() -> Path:
    """Where data is kept: `$ESPER_DATA`, or `esper` in the user's cache folder."""
    chosen = os.environ.get("ESPER_DATA")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "esper"


def is_cached(name: str) -> bool:
    """Whether arrays are kept under `name`."""
    return (data_folder() / f"{name}.npz").exists()


def cached_arrays(
    name: str, keys: Collection[str], make: Callable[[], Arrays], check: Callable[[Arrays], None]
) -> Arrays:
    """The arrays `keys` kept under `name`, made and kept first where there are none.

    A file cut short or of another content, which `check` refuses by raising, is made again. It appears under its name
    only when it is complete.
    """
    path = data_folder() / f"{name}.npz"
    if path.is_file():
        try:
            arrays = _read(path, keys)
            check(arrays)
            return arrays
        except Exception as error:  # damaged archives and headers raise anything
            reason = printable(str(error)) or type(error).__name__
            _LOG.warning("%s cannot be read (%s) and is made again", path, reason)
    arrays = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_partial_files(path.parent, name, older_than=_STALE_SECONDS)
        packed = io.BytesIO()
        np.savez(packed, **arrays)  # type: ignore[arg-type]
        write_atomically(path, packed.getvalue())
    except OSError as error:
        reason = f"data cannot be kept in {data_folder()} ({error.strerror})"
        raise InputError(f"{reason}; set ESPER_DATA to a folder that can be written") from None
    return arrays


def _read(path: Path, keys: Collection[str]) -> Arrays:
    # Opened here, because numpy leaves a damaged file open.
    with warnings.catch_warnings(), path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        warnings.simplefilter("error")  # numpy only warns of headers that it would not have written itself
        if any(member.compress_type != zipfile.ZIP_STORED for member in stored.zip.infolist()):
            raise ValueError("it is compressed, so nobody knows how large it is")
        return {key: stored[key] for key in keys}
