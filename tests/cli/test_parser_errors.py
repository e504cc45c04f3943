"""A frame of several lines becomes one sentence, however it is drawn."""

import pytest

from esper.cli.parser_errors import in_one_sentence

_FRAMED = """\x1b[31m╭─ Unrecognized options ──╮\x1b[0m
│ Unrecognized options: a │
│ b.                      │
│ ─────────────────────── │
│ Perhaps you meant:      │
│     --task STR          │
│         A task.         │
│ ─────────────────────── │
│ For full helptext, run  │
│ esper --help            │
╰─────────────────────────╯
"""
_PLAIN = """ Unrecognized options
 ------------------------
  Unrecognized options: a
  b.
 ------------------------
  Perhaps you meant:
      --task STR
          A task.
 ------------------------
  For full helptext, run
  esper --help
"""


@pytest.mark.parametrize("complaint", [_FRAMED, _PLAIN])
def test_a_frame_becomes_one_sentence(complaint: str) -> None:
    assert in_one_sentence(complaint) == "unrecognized options: a b; perhaps you meant --task; run esper --help"


def test_what_is_drawn_otherwise_is_told_as_it_is() -> None:
    assert in_one_sentence("usage: x\n  error: y\n") == "usage: x error: y"
    assert in_one_sentence("") == ""
