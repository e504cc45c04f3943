"""The data folder: the official files of each set with their checksums, and arrays that are made once and kept."""

import gzip
import hashlib
import io
import logging
import os
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from esper.leyline import DamagedFileError, InputError, printable, remove_partial_files, unknown_name, write_atomically
from esper.tasks.registry import tasks_without_download

LARGEST = 256 << 20
"""Bytes of one file, unpacked: several times the largest official one, and no danger to memory."""
STALE_SECONDS = 3600
"""What is half-written for so long was left by a process that was killed; younger files may belong to another one."""
UNREADABLE = (OSError, EOFError, zlib.error)
"""What reading a file raises that is absent, cut short or no gzip."""
_LOG = logging.getLogger(__name__)

Arrays = dict[str, NDArray[np.generic]]


def data_folder() -> Path:
    """Where data is kept: `$ESPER_DATA`, or `esper` in the user's cache folder."""
    chosen = os.environ.get("ESPER_DATA")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "esper"


def cannot_keep(error: OSError) -> InputError:
    """The one sentence for a data folder that cannot be written."""
    reason = f"data cannot be kept in {data_folder()} ({error.strerror or error})"
    return InputError(f"{reason}; set ESPER_DATA to a folder that can be written")


@dataclass(frozen=True, slots=True)
class DataSet:
    """Files of one set, as its authors publish them."""

    name: str
    folder: str
    """The folder of the official archive, inside the data folder."""
    md5: dict[str, str]
    """Published MD5 of each file; of its content, where a file may be gzipped."""
    megabytes: int
    """Size of what is downloaded."""

    def path(self) -> Path:
        return data_folder() / self.folder

    def missing_files(self) -> list[str]:
        return [name for name in self.md5 if find_file(self.path(), name) is None]

    def how_to_place(self) -> str:
        first, *_, last = self.md5
        return f"put the official archive's files ({first} ... {last}) into {self.path()}"

    def how_to_get(self) -> str:
        return f"run 'esper data get {self.name}', or {self.how_to_place()}"

    def state(self) -> str:
        """Whether the set is here, in a few words."""
        return f"missing: esper data get {self.name}" if self.missing_files() else "here"


_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _idx_set(name: str, megabytes: int, *md5: str) -> DataSet:
    return DataSet(name, name, dict(zip(_IDX, md5, strict=True)), megabytes)


CIFAR10 = DataSet(
    "cifar10",
    "cifar-10-batches-bin",
    {
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    139,
)
MNIST = _idx_set(
    "mnist",
    12,
    "6bbc9ace898e44ae57da46a324031adb",
    "a25bea736e30d166cdddb491f175f624",
    "2646ac647ad5339dbf082846283269ea",
    "27ae3e4e09519cfbb04c329615203637",
)
FASHION_MNIST = _idx_set(
    "fashion-mnist",
    31,
    "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "9018921c3c673c538a1fc5bad174d6f9",
    "8181f5470baa50b63fa0f6fddb340f0a",
    "15d484375f8d13e6eb1aabb0c3f46965",
)
SETS = {dataset.name: dataset for dataset in (CIFAR10, FASHION_MNIST, MNIST)}
"""The sets that `esper data get` obtains."""


def find_set(name: str) -> DataSet:
    if name not in SETS:
        raise unknown_name("data set", name, SETS)
    return SETS[name]


def find_file(folder: Path, name: str) -> Path | None:
    """The file `name` in `folder`, plain or else gzipped."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def open_content(path: Path) -> io.BufferedIOBase:
    """A file to read from, unpacked if it is gzipped."""
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def read_bytes(path: Path) -> bytes:
    try:
        with open_content(path) as file:
            content = file.read(LARGEST + 1)
    except UNREADABLE as error:
        raise damaged(path, str(error)) from None
    if len(content) > LARGEST:
        raise damaged(path, f"it holds more than {LARGEST >> 20} MB")
    return content


def content_md5(path: Path) -> str:
    with open_content(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def damaged(path: Path, reason: str) -> DamagedFileError:
    """The one sentence for a file that is cut short or holds something else."""
    return DamagedFileError(f"{path} cannot be used ({printable(reason)}); replace it with the official file")


def absent_data(task: str, how: str) -> InputError:
    """The one sentence for data that is not here: what supplies it, and which tasks need none."""
    offline = ", ".join(tasks_without_download())
    return InputError(f"the data of task {task!r} is missing: {how}; tasks that need no download: {offline}")


def is_cached(name: str) -> bool:
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
        remove_partial_files(path.parent, name, older_than=STALE_SECONDS)
        packed = io.BytesIO()
        np.savez(packed, **arrays)  # type: ignore[arg-type]
        write_atomically(path, packed.getvalue())
    except OSError as error:
        raise cannot_keep(error) from None
    return arrays


def _read(path: Path, keys: Collection[str]) -> Arrays:
    # Opened here, because numpy leaves a damaged file open.
    with warnings.catch_warnings(), path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        warnings.simplefilter("error")  # numpy only warns of headers that it would not have written itself
        if any(member.compress_type != zipfile.ZIP_STORED for member in stored.zip.infolist()):
            raise ValueError("it is compressed, so nobody knows how large it is")
        return {key: stored[key] for key in keys}
