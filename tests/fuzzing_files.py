"""Fuzzing of what people and disks hand in: numbered cases, each drawn from its own seed, and what each may lead to.

A case is named by its suite and number, and is the same in every run. `ESPER_FUZZ_CASE=4711 pytest -m slow
tests/fuzz/test_configs.py` runs one case alone. A case may work, or fail with one sentence; it may execute nothing, and
write or remove nothing outside its folder.
"""

import io
import math
import os
import random
import resource
import signal
import string
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from esper.cli import main
from esper.leyline import EsperError

BLOCK = 50
"""Cases in one test."""
_HANGING_SECONDS = 60
_LONGEST_SENTENCE = 2100
_MOST_BYTES = 4 << 30
_HARMLESS = ("/proc", "/dev")
"""Where nothing can be made or removed, though commands may be asked to try."""
_CACHES = ("__pycache__", "matplotlib", "torchinductor")
"""What Python and libraries keep for themselves."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a suite, with the dice that decide everything about it."""

    suite: str
    number: int
    folder: Path
    draw: random.Random

    def __str__(self) -> str:
        return f"case {self.number} of {self.suite}"


def blocks(total: int) -> pytest.MarkDecorator:
    """Let a test run `total` cases, some in each of several tests; it takes `first`, the number of the first."""
    return pytest.mark.parametrize("first", range(0, total, BLOCK))


def run_cases(suite: str, first: int, tmp_path: Path, body: Callable[[Case], object]) -> None:
    """Run the cases of one block, each in a folder of its own, watched while it runs."""
    chosen = os.environ.get("ESPER_FUZZ_CASE")
    for number in range(first, first + BLOCK):
        if chosen is None or number == int(chosen):
            folder = tmp_path / str(number)
            folder.mkdir()
            case = Case(suite, number, folder, random.Random(f"{suite} {number}"))
            with chdir(folder), _no_longer_than(case), _limited_memory(), _watching(case):
                body(case)


def fails_in_one_sentence(case: Case, work: Callable[[], object]) -> str | None:
    """Do `work`: None if it worked, or the one sentence of its failure."""
    try:
        work()
    except EsperError as error:
        text = str(error)
        assert text.strip(), f"{case}: an error without a word"
        assert "\n" not in text, f"{case}: several lines: {text!r}"
        return text
    except Exception:
        pytest.fail(f"{case}: {traceback.format_exc()}")
    return None


def run_command(case: Case, *words: str) -> tuple[int, str, str]:
    """Run `esper` with `words`: its exit code and what it printed. Whatever it fails with is one sentence."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main(words)
    said = err.getvalue()
    told = f"{case}: esper {words!r} exited with {stop.value.code} and said: {said}"
    assert stop.value.code in (0, 1, 2), told
    assert "Traceback" not in said, told
    assert "internal error" not in said, told
    assert "not enough memory" not in said, told
    if stop.value.code:
        lines = said.rstrip("\n").split("\n")
        assert [line for line in lines if line.startswith("esper: ")] == lines[-1:], told  # announcements come before
        assert max(map(len, lines)) < _LONGEST_SENTENCE, told
    return int(stop.value.code), out.getvalue(), said


def odd_number(draw: random.Random) -> int | float:
    """A number that programs tend to stumble over, or an ordinary one."""
    exact = (0, 1, -1, 2, 7, 2**31, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**400, -(10**400))
    floats = (0.0, -0.0, 0.5, 1.5, 1e-320, 1e308, -1e308, math.nan, math.inf, -math.inf)
    return draw.choice((*exact, *floats, draw.randrange(-100, 1000), draw.uniform(-2, 2)))


def odd_text(draw: random.Random) -> str:
    """Text that programs tend to stumble over, or an ordinary word."""
    known = (
        "", " ", "x", "none", "null", "true", "[/foo]", "[null]", "[red]", "$x$", r"$\frac$", "a*b", "?", "../..", "/",
        "~", "-", "--", "-x", "\x1b[31m", "\x9b2J", "a\nb", "a\x00b", "\udcff", "é", "\u202e", "{}", "%s", "{0}", "'",
        '"', "`id`", "$(id)", "; rm -rf x", "x" * 300, "9" * 400, "1e999", "nan", "inf", "0x10", "1_000", ":smile:",
        "\\",
    )  # fmt: skip
    random_word = "".join(draw.choice(string.printable) for _ in range(draw.randrange(1, 12)))
    return draw.choice((*known, random_word))


def odd_json(draw: random.Random, depth: int = 3) -> Any:
    """A JSON value of any shape."""
    kind = draw.randrange(8 if depth else 5)
    if kind < 2:
        return odd_number(draw)
    if kind == 2:
        return odd_text(draw)
    if kind < 5:
        return draw.choice((None, True, False, [], {}))
    if kind == 5:
        return {odd_text(draw): odd_json(draw, depth - 1) for _ in range(draw.randrange(4))}
    return [odd_json(draw, depth - 1) for _ in range(draw.randrange(4))]


def deep_json(draw: random.Random) -> str:
    """The text of a JSON value that is nested very deeply, perhaps not closed."""
    levels = draw.choice((90, 110, 1000, 5000, 100_000))
    opening, closing = draw.choice((("[", "]"), ('{"a":', "}")))
    return opening * levels + "1" + closing * draw.choice((levels, levels - 1))


def damaged(draw: random.Random, data: bytes) -> bytes:
    """`data` after one to three accidents: a bit flipped, a stretch lost, doubled, zeroed or replaced, the end lost."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        at = draw.choice((draw.randrange(len(data) + 1), draw.randrange(min(len(data), 64) + 1)))
        length = draw.choice((1, 2, 4, 8, draw.randrange(1, 500)))
        before, stretch, after = data[:at], data[at : at + length], data[at + length :]
        accident = draw.randrange(8)
        if accident == 0:
            data = before
        elif accident == 1:
            data = before + after
        elif accident == 2:
            data = before + stretch + stretch + after
        elif accident == 3:
            data = before + bytes(len(stretch)) + after
        elif accident == 4:
            data = before + b"\xff" * len(stretch) + after
        elif accident == 5:
            data = before + draw.randbytes(length) + after
        elif accident == 6 and stretch:
            data = before + bytes([stretch[0] ^ (1 << draw.randrange(8))]) + stretch[1:] + after
        else:
            data = draw.choice((b"", draw.randbytes(length), data + draw.randbytes(length), data + data))
    return data


@contextmanager
def _no_longer_than(case: Case) -> Iterator[None]:
    """Name a case that hangs, instead of hanging."""

    def give_up(number: int, frame: object) -> None:
        raise AssertionError(f"{case} hangs")

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(_HANGING_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@contextmanager
def _limited_memory() -> Iterator[None]:
    """Let a case that asks for endless memory fail, and not the machine."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _MOST_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@dataclass(slots=True)
class _Watch:
    """What a case did that it must not do."""

    folder: str = ""
    offences: list[str] = field(default_factory=list)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.folder:
            return
        if event in (
            "subprocess.Popen",
            "os.system",
            "os.exec",
            "os.posix_spawn",
            "os.fork",
            "os.forkpty",
            "pty.spawn",
        ):
            self.offences.append(f"executed: {event}{arguments!r}")
        elif event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                self._check("wrote", path)
        elif event in ("os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "shutil.rmtree"):
            self._check(event, arguments[0])
        elif event == "os.rename":
            self._check(event, arguments[0])
            self._check(event, arguments[1])
        elif event in ("os.link", "os.symlink"):
            self._check(event, arguments[1])

    def _check(self, what: str, path: object) -> None:
        if isinstance(path, int):
            return
        place = os.path.abspath(os.fsdecode(path))  # type: ignore[arg-type]
        if not place.startswith((self.folder, *_HARMLESS)) and not any(name in place for name in _CACHES):
            self.offences.append(f"{what} {place}")


_WATCH = _Watch()
sys.addaudithook(_WATCH.hear)


@contextmanager
def _watching(case: Case) -> Iterator[None]:
    _WATCH.folder, _WATCH.offences = str(case.folder), []
    try:
        yield
    finally:
        _WATCH.folder = ""
    assert not _WATCH.offences, f"{case}: {_WATCH.offences}"
