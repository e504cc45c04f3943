"""Language modelling: sentences of a small grammar, and TinyStories with a byte-pair tokeniser.

The grammar needs no files. Verbs agree with their subjects, also across relative clauses, and nouns have favourite
verbs: there is something to learn at short and at long range.

TinyStories is read from text files in the data folder; results should name the files. Its host and optimiser are
plausible, not tuned. The tokeniser is lossless and has no unknown words, so the loss means the same on any text.
"""

import hashlib
import itertools
import random
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np

from esper.tasks.files import UNREADABLE, Arrays, absent_data, cached_arrays, damaged, data_folder, open_content
from esper.tasks.registry import OptimizerSettings, Splits, hold_out_end, task, to_sequences

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
    noun, plural = draw.randrange(len(_NOUNS)), draw.randrange(2)
    return [*_noun_phrase(draw, noun, plural, 0), *_verb_phrase(draw, noun, plural, 0), "."]


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


END = 256
"""The token after each story."""
_FIRST_MERGE = 257
_WORD = re.compile(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+")

Merges = Sequence[tuple[int, int]]
"""Pairs of tokens that become one; the first of them becomes token 257, and so on."""


def learn_merges(text: str, vocabulary: int) -> list[tuple[int, int]]:
    """The pairs to merge, most frequent first, until there are `vocabulary` tokens or no pair occurs twice."""
    counts = Counter(_WORD.findall(text))
    words = [(list(word.encode()), count) for word, count in sorted(counts.items())]
    merges: list[tuple[int, int]] = []
    while _FIRST_MERGE + len(merges) < vocabulary:
        pairs: Counter[tuple[int, int]] = Counter()
        for tokens, count in words:
            for pair in itertools.pairwise(tokens):
                pairs[pair] += count
        best = max(pairs, key=lambda pair: (pairs[pair], pair), default=None)
        if best is None or pairs[best] < 2:
            break
        new = _FIRST_MERGE + len(merges)
        merges.append(best)
        words = [(_merge(tokens, best, new), count) for tokens, count in words]
    return merges


def encode(stories: Sequence[str], merges: Merges) -> list[int]:
    """The tokens of all stories, an end mark after each."""
    ranks = {tuple(pair): rank for rank, pair in enumerate(merges)}
    encode_word = cache(partial(_encode_word, ranks=ranks))
    tokens: list[int] = []
    for story in stories:
        for word in _WORD.findall(story):
            tokens += encode_word(word)
        tokens.append(END)
    return tokens


def _encode_word(word: str, ranks: dict[tuple[int, ...], int]) -> list[int]:
    """Merge what was learnt first, first."""
    tokens = list(word.encode())
    while True:
        known = [pair for pair in itertools.pairwise(tokens) if pair in ranks]
        if not known:
            return tokens
        first = min(known, key=ranks.__getitem__)
        tokens = _merge(tokens, first, _FIRST_MERGE + ranks[first])


def _merge(tokens: list[int], pair: tuple[int, int], new: int) -> list[int]:
    if pair[0] not in tokens:
        return tokens
    merged: list[int] = []
    for token in tokens:
        if merged and merged[-1] == pair[0] and token == pair[1]:
            merged[-1] = new
        else:
            merged.append(token)
    return merged


_FOLDER = "tinystories"
_END_LINE = "<|endoftext|>"
_KEYS = ("train", "test", "merges")
_VOCABULARY = 512
_STORY_CONTEXT = 64
_LEAST_TOKENS = {"train": 10 * (_STORY_CONTEXT + 1), "test": _STORY_CONTEXT + 1}
_VAL_MOST, _VAL_SHARE, _TEST_MOST = 256, 0.1, 1024
_TRAIN_BYTES, _TEST_BYTES = 8_000_000, 1_000_000
"""No more than this is read of each file: the full set is 2 GB, and an episode sees little of it."""
_LEARN_CHARACTERS = 1_000_000
"""How much of the training text the tokeniser is made from."""
_OFFICIAL = "TinyStoriesV2-GPT4-{part}.txt"


def _files(part: str) -> list[Path]:
    """The files with `part` in their names, plain or gzipped; a plain one stands for its gzipped copy."""
    folder = data_folder() / _FOLDER
    found = {path.name.removesuffix(".gz"): path for path in sorted(folder.glob(f"*{part}*.txt.gz"))}
    found.update({path.name: path for path in sorted(folder.glob(f"*{part}*.txt"))})
    return [found[name] for name in sorted(found) if found[name].is_file()]


def _state() -> str:
    here = all(_files(part) for part in ("train", "valid"))
    return "here" if here else f"missing: put text files into {_FOLDER}/"


@task(
    "tinystories",
    "TinyStories: which token comes next in a short story",
    host="transformer",
    classes=_VOCABULARY,
    optimizer=OptimizerSettings("adamw", lr=3e-3, schedule="cosine"),
    host_settings={"vocabulary": _VOCABULARY, "context": _STORY_CONTEXT, "width": 64, "layers": 2, "heads": 4},
    batch_size=16,
    quality="loss",
    data=_state,
    needs_files=True,
)
def load_tinystories() -> Splits:
    """Sequences of 64 tokens; the end of the training text is for validation, the validation files are the test split.

    Tokeniser and tokens are kept in the data folder until a file changes.
    """
    train, test = _files("train"), _files("valid")
    if not train or not test:
        names = " and ".join(_OFFICIAL.format(part=part) for part in ("train", "valid"))
        place = f"put {names}, or other *train*.txt and *valid*.txt files, plain or .gz, into {data_folder() / _FOLDER}"
        raise absent_data("tinystories", f"it cannot be downloaded here; {place}")
    stamps = [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in (*train, *test)]
    digest = hashlib.sha256("\n".join([*stamps, str(_VOCABULARY)]).encode()).hexdigest()[:16]
    arrays = cached_arrays(f"{_FOLDER}-{digest}", _KEYS, lambda: _tokenise(train, test), _check)
    sequences = to_sequences(arrays["train"], _STORY_CONTEXT)
    kept, val = hold_out_end(sequences, min(_VAL_MOST, int(_VAL_SHARE * len(sequences))))
    return Splits(kept, val, to_sequences(arrays["test"], _STORY_CONTEXT, _TEST_MOST))


def _tokenise(train: list[Path], test: list[Path]) -> Arrays:
    """Learn a tokeniser from the training text alone, and encode both parts with it."""
    stories = [story for path in train for story in read_stories(path, _TRAIN_BYTES)]
    merges = learn_merges("\n".join(stories)[:_LEARN_CHARACTERS], _VOCABULARY)
    unseen = [story for path in test for story in read_stories(path, _TEST_BYTES)]
    made: Arrays = {"merges": np.array(merges, np.uint16).reshape(-1, 2)}
    for name, part, paths in (("train", stories, train), ("test", unseen, test)):
        made[name] = np.array(encode(part, merges), np.uint16)
        if len(made[name]) <= _LEAST_TOKENS[name]:
            raise damaged(paths[0], f"{len(made[name])} tokens are too few for sequences of {_STORY_CONTEXT}")
    return made


def _check(arrays: Arrays) -> None:
    """Refuse kept arrays that `_tokenise` cannot have made."""
    for name, least in _LEAST_TOKENS.items():
        tokens = arrays[name]
        if tokens.dtype != np.uint16 or tokens.ndim != 1 or len(tokens) <= least or tokens.max() >= _VOCABULARY:
            raise ValueError(f"{name} is {tokens.dtype}{tokens.shape}, or holds tokens beyond {_VOCABULARY}")
    # Each merge `[2]` names tokens that exist before it.
    merges = arrays["merges"]
    count = len(merges) if merges.ndim == 2 else -1
    if merges.dtype != np.uint16 or merges.shape != (count, 2) or count > _VOCABULARY - _FIRST_MERGE:
        raise ValueError(f"merges are {merges.dtype}{merges.shape}")
    if (merges.max(axis=1) >= np.arange(_FIRST_MERGE, _FIRST_MERGE + count)).any():
        raise ValueError("merges name tokens that are made later")


def read_stories(path: Path, most_bytes: int) -> list[str]:
    """The stories in a file: what stands between end-of-text lines or, where there are none, between blank lines."""
    try:
        with open_content(path) as file:
            raw = file.read(most_bytes + 1)
        if len(raw) > most_bytes:
            raw = raw[: raw.rfind(b"\n", 0, most_bytes) + 1]
        text = raw.decode()
    except (*UNREADABLE, UnicodeDecodeError) as error:
        raise damaged(path, str(error)) from None
    lines = [line.strip() for line in text.splitlines()]
    mark = _END_LINE if _END_LINE in lines else ""
    stories: list[list[str]] = [[]]
    for line in lines:
        if line == mark:
            stories.append([])
        elif line:
            stories[-1].append(line)
    return ["\n".join(story) for story in stories if story]
