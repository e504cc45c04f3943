"""Text tasks: generated sentences and stories from files, as tokens and the token after each."""

import gzip
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline import InputError
from esper.tasks import Task, find_task
from esper.tasks.byte_pairs import END, decode, encode, learn_merges
from esper.tasks.text import WORDS, sentence
from esper.tasks.tinystories import read_stories

_MARKED = "\nOnce there was a cat.\nIt slept.\n<|endoftext|>\nA dog ran.\n<|endoftext|>\n"
_BLANK = "Once there was a cat.\nIt slept.\n\nA dog ran.\n"


def _val_losses(task: Task, epochs: int) -> list[float]:
    """Validation loss before training and after each epoch of a plain loop."""
    splits, host = task.load(), task.build_host()
    optimizer = torch.optim.AdamW(host.parameters(), task.optimizer.lr)
    losses = []
    for epoch in range(epochs + 1):
        with torch.inference_mode():
            losses.append(F.cross_entropy(host(splits.val.x).flatten(0, 1), splits.val.y.flatten()).item())
        for _ in range(task.batches_per_epoch if epoch < epochs else 0):
            rows = torch.randint(len(splits.train), (task.batch_size,))
            optimizer.zero_grad()
            F.cross_entropy(host(splits.train.x[rows]).flatten(0, 1), splits.train.y[rows].flatten()).backward()
            optimizer.step()
    return losses


def test_perplexity_falls_over_three_epochs_of_generated_text() -> None:
    task = find_task("text")
    losses = _val_losses(task, 3)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < task.guess_loss - 1
    assert task.quality == "loss"


def test_generated_text_has_three_splits_of_words_and_their_followers() -> None:
    task = find_task("text")
    splits = task.splits()
    assert [tuple(part.x.shape) for part in (splits.train, splits.val, splits.test)] == [
        (2000, 32),
        (200, 32),
        (400, 32),
    ]
    for part in (splits.train, splits.val, splits.test):
        assert torch.equal(part.x[:, 1:], part.y[:, :-1])
        assert int(part.y.max()) < task.classes == len(WORDS)
    assert torch.equal(task.load().test.x, splits.test.x)


@given(st.integers(0, 10_000))
def test_verbs_of_short_sentences_agree_with_their_subjects(seed: int) -> None:
    words = sentence(random.Random(seed))
    assert words[-1] == "."
    assert set(words) <= set(WORDS)
    if words[0] in ("a", "every", "some", "many") and "that" not in words:
        noun = 1 if words[1] + "s" in WORDS or words[1].endswith("s") else 2  # after an adjective
        singular = words[0] in ("a", "every")
        assert words[noun].endswith("s") is not singular
        assert words[noun + 1].endswith("s") is singular


@given(st.text(max_size=60))
def test_tokens_spell_the_text_they_came_from(text: str) -> None:
    merges = learn_merges("the cat sat on the mat and the cat ran", 270)
    tokens = encode([text], merges)
    assert tokens[-1] == END
    assert decode(tokens[:-1], merges) == text


def test_the_most_frequent_pair_is_merged_first() -> None:
    merges = learn_merges("abab abab ab x", 259)
    assert merges == [(ord("a"), ord("b")), (257, 257)]
    assert encode(["abab x"], merges) == [258, ord(" "), ord("x"), END]


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
    losses = _val_losses(task, 2)
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
