"""Tokens as text again, for tests."""

from collections.abc import Sequence

from esper.tasks.text import Merges


def decode(tokens: Sequence[int], merges: Merges) -> str:
    """The text of `tokens`; end marks become empty lines."""
    spelled = [bytes((value,)) for value in range(256)] + [b"\n\n"]
    for left, right in merges:
        spelled.append(spelled[left] + spelled[right])
    return b"".join(spelled[token] for token in tokens).decode(errors="replace")
