"""Data files: whatever the files of a set hold, a task has sound data or one sentence names the file."""

import gzip
import io
import pickle
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esper.tasks import Splits, Task, find_task, mnist1d, registry, ucr
from esper.tasks.files import CIFAR10, MNIST
from esper.tasks.registry import check_split
from tests.fuzzing_files import Case, blocks, damaged, fails_in_one_sentence, odd_number, odd_text, run_cases
from tests.tasks.image_sets import cifar_batch, idx_bytes
from tests.tasks.spelling import decode

pytestmark = pytest.mark.slow


def _sound(case: Case, task: Task, splits: Splits) -> None:
    """What a loader gives can be trained on; what only numbers show is refused with the whole task."""
    for name in ("train", "val", "test"):
        part = getattr(splits, name)
        fails_in_one_sentence(case, lambda part=part: check_split("it", part.x, part.y, task.classes))  # type: ignore[misc]
    task.build_host()(splits.val.x[:2])


def _load(case: Case, task: Task, names: tuple[str, ...]) -> None:
    """Load a task whose files are odd; a refusal names one of them."""
    said = fails_in_one_sentence(case, lambda: _sound(case, task, task.load()))
    assert said is None or any(name in said for name in names), f"{case}: {said}"


@cache
def _idx_files() -> dict[str, bytes]:
    generator = np.random.default_rng(0)
    shapes = {name: (20, 28, 28) if "images" in name else (20,) for name in MNIST.md5}
    return {name: idx_bytes(generator.integers(0, 10, shape, dtype=np.uint8)) for name, shape in shapes.items()}


def _one_idx(case: Case) -> None:
    draw = case.draw
    folder = case.folder / "mnist"
    folder.mkdir()
    odd = draw.choice(list(_idx_files()))
    for name, content in _idx_files().items():
        zipped = draw.random() < 0.5
        if name == odd and draw.random() < 0.5:
            dimensions = draw.choice((0, 1, 1, 3, 3, 255))
            sizes = [draw.choice((0, 1, 20, 28, 2**31, 2**32 - 1)) for _ in range(dimensions)]
            header = bytes((0, 0, draw.choice((8, 8, 13)), dimensions)) + struct.pack(f">{dimensions}I", *sizes)
            content = header + content[draw.randrange(4, 20) :]
        elif name == odd and not zipped:
            content = damaged(draw, content)
        packed = gzip.compress(content) if zipped else content
        packed = damaged(draw, packed) if name == odd and zipped and draw.random() < 0.5 else packed
        (folder / (f"{name}.gz" if zipped else name)).write_bytes(packed)
    _load(case, find_task("mnist"), tuple(MNIST.md5))


@cache
def _batch(index: int) -> bytes:
    pixels, labels = cifar_batch(index, 2)
    return np.concatenate([labels[:, None], pixels], axis=1).tobytes()


def _one_cifar_binary(case: Case) -> None:
    folder = case.folder / "cifar-10-batches-bin"
    folder.mkdir()
    odd = case.draw.choice(list(CIFAR10.md5))
    for index, name in enumerate(CIFAR10.md5):
        (folder / name).write_bytes(damaged(case.draw, _batch(index)) if name == odd else _batch(index))
    _load(case, find_task("cifar10"), (*CIFAR10.md5, folder.name))


class _Call:
    """Pickled as a call of anything with anything."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._call


def _odd_pickle(case: Case) -> bytes:
    draw = case.draw
    pixels, labels = cifar_batch(0, 2)
    batch: dict[Any, Any] = {b"data": pixels, b"labels": labels.tolist(), b"batch_label": b"x"}
    match draw.randrange(5):
        case 0:
            import os
            import subprocess

            call = draw.choice((os.system, subprocess.call, open, eval, exec, getattr, print, np.load, np.fromfile))
            batch[draw.choice((b"data", b"labels", b"x"))] = _Call(call, odd_text(draw), "w")
        case 1:
            made = draw.choice((np.ndarray, np.dtype, np.zeros(1).__reduce__()[0]))
            batch[b"data"] = _Call(made, odd_number(draw), draw.choice((odd_number(draw), odd_text(draw))))
        case 2:
            batch[b"labels"] = [odd_number(draw) for _ in range(2)]
        case 3:
            kind = draw.choice((np.uint8, np.int64, np.float64, np.object_, np.dtype("V8")))
            shape = draw.choice(((), (2,), (2, 3072), (1, 3072), (3072, 2), (2, 3, 1024), (0, 3072)))
            batch[b"data"] = np.zeros(shape, kind)
        case _:
            return damaged(draw, pickle.dumps(batch, protocol=2))
    return pickle.dumps(batch, protocol=draw.choice((0, 2, 4, 5)))


def _one_cifar_pickle(case: Case) -> None:
    folder = case.folder / "cifar-10-batches-py"
    folder.mkdir()
    names = [name.removesuffix(".bin") for name in CIFAR10.md5]
    odd = case.draw.choice(names)
    for index, name in enumerate(names):
        pixels, labels = cifar_batch(index, 2)
        whole = pickle.dumps({b"data": pixels, b"labels": labels.tolist()}, protocol=2)
        (folder / name).write_bytes(_odd_pickle(case) if name == odd else whole)
    _load(case, find_task("cifar10"), (*names, folder.name))


def _kept() -> dict[str, Any]:
    x = np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32)
    return {"x": x, "y": np.arange(50) % 10, "x_test": x[:20], "y_test": np.arange(20) % 10}


def _odd_array(case: Case) -> Any:
    draw = case.draw
    shape = [draw.choice((0, 1, 7, 20, 40, 50)) for _ in range(draw.randrange(4))]
    kind = draw.choice(("f4", "f8", "i8", "u2", ">f4", "c8", "O", "S3", "M8[s]", "?"))
    array = np.zeros(shape, kind)
    if kind in ("f4", "f8", ">f4") and array.size:
        array.flat[0] = draw.choice((np.nan, np.inf, 1.0))
    return array


def _one_npz(case: Case) -> None:
    """Kept data that cannot be used is made again, so the task always loads."""
    arrays = _kept()
    packed = io.BytesIO()
    if case.draw.random() < 0.5:
        for name in case.draw.sample(list(arrays), case.draw.randrange(1, 3)):
            arrays[name] = _odd_array(case)
        save = case.draw.choice((np.savez, np.savez, np.savez_compressed))
        save(packed, **arrays)
        content = packed.getvalue()
    else:
        np.savez(packed, **arrays)
        content = damaged(case.draw, packed.getvalue())
    (case.folder / "mnist1d.npz").write_bytes(content)
    task = find_task("mnist1d")
    assert fails_in_one_sentence(case, lambda: _sound(case, task, task.load())) is None
    assert fails_in_one_sentence(case, lambda: _sound(case, task, task.load())) is None


def _series(num: int) -> str:
    lines = ["# a comment", "@problemName Some", "@equalLength true", "@classLabel true low high", "@data"]
    for row in range(num):
        values = ",".join(f"{row % 2 + 0.1 * place:.2f}" for place in range(12))
        lines.append(f"{values}:{('low', 'high')[row % 2]}")
    return "\n".join(lines) + "\n"


def _odd_series(case: Case) -> bytes:
    draw, lines = case.draw, _series(8).splitlines()
    at = draw.randrange(len(lines))
    match draw.randrange(4):
        case 0:
            return damaged(draw, _series(8).encode())
        case 1:
            lines[at] = draw.choice((odd_text(draw), f"@{odd_text(draw)}", "@classLabel true", "@data", ":", ":low"))
        case 2:
            lines[at] = lines[at].replace("0.10", str(odd_number(draw)))
        case _:
            lines.insert(
                at, draw.choice((f"@equalLength {odd_text(draw)}", f"@classLabel {odd_text(draw)}", lines[-1] + ":low"))
            )
    return "\n".join(lines).encode(errors="surrogateescape")


def _one_series(case: Case) -> None:
    folder = case.folder / "Some"
    folder.mkdir()
    odd = case.draw.choice(("TRAIN", "TEST"))
    for part in ("TRAIN", "TEST"):
        (folder / f"Some_{part}.ts").write_bytes(_odd_series(case) if part == odd else _series(8).encode())
    registry._RESOLVED.pop("ucr:Some", None)

    def load() -> None:
        task = find_task("ucr:Some")
        _sound(case, task, task.load())

    said = fails_in_one_sentence(case, load)
    assert said is None or "Some_" in said or "unknown UCR set 'Some'" in said, f"{case}: {said}"


_STORY = "Once there was a cat. It sat on the mat, and the dog ran to see it.\n"


def _one_text(case: Case) -> None:
    folder = case.folder / "tinystories"
    folder.mkdir()
    odd = case.draw.choice(("train", "valid"))
    for part, count in (("train", 40), ("valid", 8)):
        mark = case.draw.choice(("<|endoftext|>\n", "\n"))
        content = (_STORY + mark).encode() * count
        zipped = case.draw.random() < 0.3
        packed = gzip.compress(content) if zipped else content
        packed = damaged(case.draw, packed) if part == odd else packed
        (folder / f"some-{part}.txt{'.gz' if zipped else ''}").write_bytes(packed)
    task = find_task("tinystories")
    _load(case, task, ("some-train.txt", "some-valid.txt"))
    for kept in case.folder.glob("tinystories-*.npz"):  # what was kept of it is damaged, too, and made again
        whole = kept.read_bytes()
        kept.write_bytes(damaged(case.draw, whole))
        assert fails_in_one_sentence(case, lambda: _sound(case, task, task.load())) is None
        with np.load(kept) as stored:
            decode(stored["test"].tolist(), [tuple(pair) for pair in stored["merges"].tolist()])


@pytest.fixture
def _no_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist1d, "_generate", lambda _: _kept())


def _run(suite: str, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: Callable[[Case], None]) -> None:
    def in_data_folder(case: Case) -> None:
        monkeypatch.setenv("ESPER_DATA", str(case.folder))
        monkeypatch.setattr(ucr, "_folder", lambda: case.folder)
        body(case)

    run_cases(suite, first, tmp_path, in_data_folder)


@blocks(600)
def test_idx_files(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run("idx files", first, tmp_path, monkeypatch, _one_idx)


@blocks(300)
def test_binary_cifar_files(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run("binary CIFAR files", first, tmp_path, monkeypatch, _one_cifar_binary)


@blocks(600)
def test_pickled_cifar_files(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run("pickled CIFAR files", first, tmp_path, monkeypatch, _one_cifar_pickle)


@blocks(600)
@pytest.mark.usefixtures("_no_generator")
def test_kept_arrays(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run("npz files", first, tmp_path, monkeypatch, _one_npz)


@blocks(500)
def test_series_files(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run("ts files", first, tmp_path, monkeypatch, _one_series)


@blocks(200)
def test_text_files(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run("text files", first, tmp_path, monkeypatch, _one_text)
