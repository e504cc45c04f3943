"""Generated sentences, as tokens and the token after each."""

import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.tasks import find_task
from esper.tasks.text import WORDS, sentence
from tests.tasks.learning import val_losses


def test_perplexity_falls_over_three_epochs_of_generated_text() -> None:
    task = find_task("text")
    losses = val_losses(task, 3)
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
