"""Stories from files: told apart, tokenised once, and damage is named."""

import gzip
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from esper.leyline import InputError
from esper.tasks import find_task
from esper.tasks.text import read_stories, sentence
from tests.tasks.learning import val_losses

_MARKED = "\nOnce there was a cat.\nIt slept.\n<|endoftext|>\nA dog ran.\n<|endoftext|>\n"
_BLANK = "Once there was a cat.\nIt slept.\n\nA dog ran.\n"


@pytest.mark.parametrize("text", [_MARKED, _BLANK], ids=["marked", "blank lines"])
@pytest.mark.parametrize("zipped", [False, True])
def test_stories_are_told_apart_in_both_layouts(text: str, zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / ("some-train.txt.gz" if zipped else "some-train.txt")
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    assert read_stories(path, 10_000) == ["Once there was a cat.\nIt slept.", "A dog ran."]


def test_no_more_is_read_than_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text("é" * 30 + "\n\n" + "é" * 30)
    assert read_stories(path, 81) == ["é" * 30]


def _write_stories(data: Path) -> Path:
    folder = data / "tinystories"
    folder.mkdir()
    for part, seed, num in (("train", 0, 600), ("valid", 1, 60)):
        draw = random.Random(seed)
        stories = [" ".join(sentence(draw)) for _ in range(num)]
        (folder / f"TinyStoriesV2-GPT4-{part}.txt").write_text("\n<|endoftext|>\n".join(stories))
    return folder


def test_stories_in_the_official_layout_are_learnt_and_kept(data: Path) -> None:
    _write_stories(data)
    task = find_task("tinystories")
    assert task.data() == "here"
    losses = val_losses(task, 2)
    assert losses[-1] < losses[0] - 1
    splits = task.load()
    assert splits.train.x.shape[1] == splits.test.x.shape[1] == 64
    assert torch.equal(splits.val.x[1:, 0], splits.val.y[:-1, -1])  # one stretch of text
    assert len(list(data.glob("tinystories-*.npz"))) == 1


def test_absent_stories_are_one_line_that_names_files_and_folder(data: Path) -> None:
    with pytest.raises(InputError) as e:
        find_task("tinystories").load()
    said = str(e.value)
    assert "TinyStoriesV2-GPT4-train.txt and TinyStoriesV2-GPT4-valid.txt" in said
    assert str(data / "tinystories") in said
    assert "text" in said.partition("tasks that need no download: ")[2].split(", ")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("TinyStoriesV2-GPT4-train.txt", b"", "too few"),
        ("TinyStoriesV2-GPT4-valid.txt", b"Too short.", "too few"),
        ("TinyStoriesV2-GPT4-train.txt", b"\xff\xfe\x00", "codec can't decode"),
        ("more-train.txt.gz", gzip.compress(b"A story. " * 999, mtime=0)[:-9], "ended before"),
    ],
)
def test_damaged_stories_are_named_and_nothing_is_kept(name: str, content: bytes, reason: str, data: Path) -> None:
    (_write_stories(data) / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name} cannot be used .*{reason}"):
        find_task("tinystories").load()
    assert list(data.glob("*.npz")) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"train": np.full(900, 512, np.uint16)},
        {"test": np.zeros(65, np.uint16)},
        {"train": np.zeros((900, 1), np.uint16)},
        {"train": np.zeros(900, np.int64)},
        {"merges": np.full((2, 2), 257, np.uint16)},
        {"merges": np.zeros((256, 2), np.uint16)},
        {"merges": np.zeros(4, np.uint16)},
    ],
)
def test_kept_tokens_that_cannot_have_been_made_are_made_again(
    changes: dict[str, Any], data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _write_stories(data)
    task = find_task("tinystories")
    expected = task.load().train.x
    (kept,) = data.glob("tinystories-*.npz")
    with np.load(kept) as stored:
        np.savez(kept, **{**stored, **changes})
    caplog.clear()
    assert torch.equal(task.load().train.x, expected)
    assert "cannot be read" in caplog.text


def test_what_is_no_file_is_no_story(data: Path) -> None:
    folder = _write_stories(data)
    (folder / "more-train.txt").mkdir()
    os.mkfifo(folder / "other-train.txt")
    (folder / "gone-valid.txt").symlink_to("nowhere")
    assert len(find_task("tinystories").load().test) > 0


@pytest.mark.slow
def test_tinystories_load() -> None:
    task = find_task("tinystories")
    if task.data() != "here":
        pytest.skip(f"TinyStories is not here: {task.data()}")
    splits = task.load()
    assert len(splits.train) > len(splits.val)
    assert int(splits.train.x.max()) < task.classes
