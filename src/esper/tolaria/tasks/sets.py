"""The data sets that tasks read from files: their official layout, checksums, and what to say when they are absent."""

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

from esper.leyline import DamagedFileError, InputError, printable, unknown_name
from esper.tolaria.tasks.cache import data_folder
from esper.tolaria.tasks.registry import tasks_without_download

_MD5_CHUNK = 1 << 20
_LARGEST = 256 << 20
"""Bytes of one file, unpacked: several times the largest official one, and no danger to memory."""
PLACE_ARCHIVE = "put the official archive's files ({files}) into {folder}"


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
        """Where the files are looked for."""
        return data_folder() / self.folder

    def missing_files(self) -> list[str]:
        """The files that are not there, neither plain nor gzipped."""
        return [name for name in self.md5 if find_file(self.path(), name) is None]

    def how_to_place(self) -> str:
        """How to supply the files by hand."""
        names = list(self.md5)
        return PLACE_ARCHIVE.format(files=f"{names[0]} ... {names[-1]}", folder=self.path())

    def state(self) -> str:
        """Whether the set is here, in a few words."""
        missing = self.missing_files()
        if not missing:
            return "here"
        return f"missing: esper data get {self.name}"


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
    """The set called `name`."""
    if name not in SETS:
        raise unknown_name("data set", name, SETS)
    return SETS[name]


def find_file(folder: Path, name: str) -> Path | None:
    """The file `name` in `folder`, plain or else gzipped."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if it is gzipped."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, str(error)) from None
    if len(content) > _LARGEST:
        raise damaged(path, f"it holds more than {_LARGEST >> 20} MB")
    return content


def content_md5(path: Path) -> str:
    """The MD5 of the content of a file, unpacked if it is gzipped."""
    digest = hashlib.md5(usedforsecurity=False)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        while chunk := file.read(_MD5_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def damaged(path: Path, reason: str) -> DamagedFileError:
    """The one sentence for a file that is cut short or holds something else."""
    return DamagedFileError(f"{path} cannot be used ({printable(reason)}); replace it with the official file")


def absent_data(task: str, how: str) -> InputError:
    """The one sentence for data that is not here: what supplies it, and which tasks need none."""
    offline = ", ".join(tasks_without_download())
    return InputError(f"the data of task {task!r} is missing: {how}; tasks that need no download: {offline}")


def require(dataset: DataSet) -> None:
    """Refuse to go on without the files of a set."""
    if dataset.missing_files():
        raise absent_data(dataset.name, f"run 'esper data get {dataset.name}', or {dataset.how_to_place()}")
