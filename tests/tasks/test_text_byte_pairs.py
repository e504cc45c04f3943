"""The tokeniser spells what it was given, and merges the most frequent pair first."""

from hypothesis import given
from hypothesis import strategies as st

from esper.tasks.text import END, encode, learn_merges
from tests.tasks.spelling import decode


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
