"""JSON is read with limits, and what is printed cannot drive a terminal."""

import json
from pathlib import Path

import pytest

from esper.leyline import InputError, printable, read_json
from esper.leyline.text import parse_json


def test_text_that_a_terminal_would_obey_is_shown_escaped() -> None:
    assert printable("a\x1b[2Jb\nc\x9b\u202ed") == r"a\x1b[2Jb\nc\x9b\u202ed"
    assert printable("naïve [bold] ✓ text") == "naïve [bold] ✓ text"
    assert printable("\udcff") == r"\udcff"


@pytest.mark.parametrize("value", [{"a": [1, 2.5, None, True]}, 2**63 - 1, -(2**63), "text", [[[]]]])
def test_ordinary_json_is_read(value: object) -> None:
    assert parse_json(json.dumps(value), "x") == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "x is not JSON: "),
        ("9" * 400, "x is not JSON: the whole number 99999999999999999999... does not fit into 64 bits"),
        ("9" * 9_000, "does not fit into 64 bits"),
        (str(2**63), "the whole number 9223372036854775808 does not fit into 64 bits"),
        ("[" * 101 + "]" * 101, "x is nested more than 100 levels deep"),
        ("[" * 5_000 + "]" * 5_000, "x is nested more than 100 levels deep"),
        ('{"a":' * 200 + "1" + "}" * 200, "x is nested more than 100 levels deep"),
    ],
)
def test_json_that_cannot_be_used_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_json(text, "x")
    assert message in str(refused.value)
    assert len(str(refused.value)) < 120


def test_a_file_of_json_is_read_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(InputError, match="the config: No such file"):
        read_json(path, "the config")
    path.write_text('{"a": 1}')
    assert read_json(path, "the config") == {"a": 1}
    path.write_bytes(b"\xff")
    with pytest.raises(InputError, match="the config is not JSON: 'utf-8' codec"):
        read_json(path, "the config")
    monkeypatch.setattr("esper.leyline.text._LARGEST_FILE", 1 << 20)
    with pytest.raises(InputError, match="the config holds more than 1 MB"):
        read_json(Path("/dev/zero"), "the config")
