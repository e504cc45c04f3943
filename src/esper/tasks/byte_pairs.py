"""A small tokeniser (byte-pair encoding): bytes, an end mark, and the pairs most frequent in the training text.

Lossless and without unknown words, so that the loss means the same on any text.
"""

import itertools
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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


def check_merges(merges: NDArray[np.generic], vocabulary: int) -> None:
    """Refuse an array of merges `[K, 2]` that cannot have been learnt: each pair names tokens that exist before it."""
    count = len(merges) if merges.ndim == 2 else -1
    if merges.dtype != np.uint16 or merges.shape != (count, 2) or count > vocabulary - _FIRST_MERGE:
        raise ValueError(f"merges are {merges.dtype}{merges.shape}")
    if (merges.max(axis=1) >= np.arange(_FIRST_MERGE, _FIRST_MERGE + count)).any():
        raise ValueError("merges name tokens that are made later")


def encode(stories: Sequence[str], merges: Merges) -> list[int]:
    """The tokens of all stories, an end mark after each."""
    ranks = {tuple(pair): rank for rank, pair in enumerate(merges)}
    known: dict[str, list[int]] = {}
    tokens: list[int] = []
    for story in stories:
        for word in _WORD.findall(story):
            if word not in known:
                known[word] = _encode_word(word, ranks)
            tokens += known[word]
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
