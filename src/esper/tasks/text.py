"""Sentences of a small grammar: a language task that needs no files.

Verbs agree with their subjects, also across relative clauses, and nouns have favourite verbs: there is something to
learn at short and at long range. The host is plausible, not tuned.
"""

import random

import numpy as np

from esper.tasks.registry import OptimizerSettings, task
from esper.tasks.samples import Splits, hold_out_end, to_sequences

_NOUNS = ("bird", "boat", "cat", "girl", "dog", "goat", "king", "tree")
_VERBS = ("sees", "likes", "finds", "helps", "fears")
_STATES = ("sleeps", "waits", "sings")
_ADJECTIVES = ("big", "old", "red", "sad", "shy", "wet")
_DETERMINERS = (("the", "a", "every"), ("the", "some", "many"))
_FAVOURITE = 0.7
"""How often a noun does what it does best."""
_RELATIVE, _ADJECTIVE, _TRANSITIVE = 0.3, 0.4, 0.6
_MAX_DEPTH = 2

_CONTEXT = 32
_SEQUENCES = {"train": 2000, "val": 200, "test": 400}
_TRAIN_SEED, _TEST_SEED = 0, 1


def _forms(word: str, plural: int) -> str:
    """A noun or verb in the singular or plural; what ends in `s` in the one does not in the other."""
    if word in _NOUNS:
        return f"{word}s" if plural else word
    return word.removesuffix("s") if plural else word


WORDS = tuple(
    sorted(
        {".", "that", *_ADJECTIVES, *_DETERMINERS[0], *_DETERMINERS[1]}
        | {_forms(word, plural) for word in (*_NOUNS, *_VERBS, *_STATES) for plural in (0, 1)}
    )
)
"""The vocabulary; a token is a place in it."""


def sentence(draw: random.Random) -> list[str]:
    return [*_clause(draw, 0), "."]


def _clause(draw: random.Random, depth: int) -> list[str]:
    noun, plural = draw.randrange(len(_NOUNS)), draw.randrange(2)
    return [*_noun_phrase(draw, noun, plural, depth), *_verb_phrase(draw, noun, plural, depth)]


def _noun_phrase(draw: random.Random, noun: int, plural: int, depth: int) -> list[str]:
    words = [draw.choice(_DETERMINERS[plural])]
    if draw.random() < _ADJECTIVE:
        words.append(draw.choice(_ADJECTIVES))
    words.append(_forms(_NOUNS[noun], plural))
    if depth < _MAX_DEPTH and draw.random() < _RELATIVE:
        words += ["that", *_verb_phrase(draw, noun, plural, depth + 1)]
    return words


def _verb_phrase(draw: random.Random, noun: int, plural: int, depth: int) -> list[str]:
    kinds = _VERBS if draw.random() < _TRANSITIVE else _STATES
    verb = kinds[noun % len(kinds)] if draw.random() < _FAVOURITE else draw.choice(kinds)
    words = [_forms(verb, plural)]
    if kinds is _VERBS:
        words += _noun_phrase(draw, draw.randrange(len(_NOUNS)), draw.randrange(2), depth + 1)
    return words


def _draw_tokens(num: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    places = {word: place for place, word in enumerate(WORDS)}
    tokens: list[int] = []
    while len(tokens) < num:
        tokens += [places[word] for word in sentence(draw)]
    return tokens[:num]


@task(
    "text",
    "sentences of a small grammar: which word comes next",
    host="transformer",
    classes=len(WORDS),
    optimizer=OptimizerSettings("adamw", lr=2e-2, schedule="wsd"),
    host_settings={"vocabulary": len(WORDS), "context": _CONTEXT, "width": 16, "layers": 2, "heads": 2},
    batch_size=16,
    quality="loss",
    data=lambda: "generated at each start, 1 second",
)
def load_text() -> Splits:
    """2,000 / 200 / 400 sequences of 32 words."""
    num = (_SEQUENCES["train"] + _SEQUENCES["val"]) * _CONTEXT + 1
    sequences = to_sequences(np.array(_draw_tokens(num, _TRAIN_SEED)), _CONTEXT)
    train, val = hold_out_end(sequences, _SEQUENCES["val"])
    test = to_sequences(np.array(_draw_tokens(_SEQUENCES["test"] * _CONTEXT + 1, _TEST_SEED)), _CONTEXT)
    return Splits(train, val, test)
