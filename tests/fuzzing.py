"""Fuzzing what is read from files: single changes to nested states, damaged bytes, and what has to come of them.

Everything follows from a seed, and every case has a name that says what was changed, so that a failure can be repeated.
"""

import math
import random
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from esper.leyline import InputError

T = TypeVar("T")
Place = tuple[Any, ...]
"""Keys and indices that lead to a place in a nested state."""
Change = Callable[[Any], Any]

_STRANGERS: Mapping[str, Any] = {
    "none": None,
    "true": True,
    "a negative number": -1,
    "zero": 0,
    "a fraction": 0.5,
    "a huge number": 10**12,
    "a number of 400 digits": 10**400,
    "NaN": math.nan,
    "infinity": math.inf,
    "a word": "word",
    "an empty text": "",
    "two lines": "two\nlines",
    "an empty list": [],
    "an empty dictionary": {},
    "an empty tuple": (),
    "nested lists": [[[1]]],
    "a tensor": torch.zeros(3),
    "a scalar tensor": torch.tensor(1.0),
}
"""What may stand where something else belongs."""


def mutations(state: Any, seed: int, count: int) -> Iterator[tuple[str, Any]]:
    """`count` copies of `state` with one change each, and what was changed; `state` stays as it is."""
    cases = [(path, name, change) for path, value in places(state) for name, change in _changes(path, value).items()]
    random.Random(seed).shuffle(cases)
    for path, name, change in cases[:count]:
        yield f"{'.'.join(map(str, path)) or 'everything'}: {name}", changed(state, path, change)


def places(state: Any, path: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every place in a nested state, the state itself included, with what is there."""
    yield path, state
    items = state.items() if isinstance(state, Mapping) else enumerate(state) if isinstance(state, list | tuple) else ()
    for key, value in items:
        yield from places(value, (*path, key))


class _Gone:
    """Stands for something that is to be deleted."""


def _changes(path: Place, value: Any) -> dict[str, Change]:
    """What can be done to one value, by name."""
    changes = {f"replaced by {name}": _put(stranger) for name, stranger in _STRANGERS.items()}
    if path:
        changes["deleted"] = lambda _: _Gone
    if isinstance(value, dict):
        changes["given a key more"] = lambda old: old | {"surplus": 1}
        changes["given a key that is a number"] = lambda old: old | {7_000_000: 1}
    elif isinstance(value, list):
        changes["doubled"] = lambda old: old + old
        changes["made a tuple"] = tuple
    elif isinstance(value, Tensor):
        changes |= _TENSOR_CHANGES
    elif isinstance(value, int | float):
        changes |= {"turned round": lambda old: -old, "made text": str, "grown": lambda old: old * 1000 + 1}
    return changes


def _put(stranger: Any) -> Change:
    return lambda _: stranger


def _with_nan(old: Tensor) -> Tensor:
    new = old.clone()
    if new.is_floating_point() and new.numel():
        new.view(-1)[new.numel() // 2] = torch.nan
    return new


_TENSOR_CHANGES: dict[str, Change] = {
    "cut by a row": lambda old: old[:-1].clone() if old.dim() else old.reshape(1),
    "given a dimension more": lambda old: old.unsqueeze(0).clone(),
    "flattened": lambda old: old.reshape(-1).clone(),
    "in another number format": lambda old: old.to(torch.float16),
    "as whole numbers": lambda old: old.to(torch.int32),
    "with a NaN": _with_nan,
    "all below 0": lambda old: -old.double().abs().to(old.dtype) - 1 if old.is_floating_point() else old.clone(),
    "claiming a terabyte": lambda old: torch.zeros((), dtype=old.dtype).expand(2**20, 2**20),
    "sparse": lambda old: old.to_sparse() if old.dim() else old.clone(),
}


def changed(state: Any, path: Place, change: Change) -> Any:
    """A copy of `state` with one change; containers on the way are copied, nothing else is."""
    if not path:
        return change(state)
    new = changed(state[path[0]], path[1:], change)
    if isinstance(state, Mapping):
        copied = dict(state)
        copied[path[0]] = new
        return {key: value for key, value in copied.items() if value is not _Gone}
    items = [new if index == path[0] else item for index, item in enumerate(state)]
    return type(state)(item for item in items if item is not _Gone)


def damaged_bytes(data: bytes, seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """`count` copies of `data` with flipped bits, zeroed, doubled or swapped stretches, or a part missing."""
    dice = random.Random(seed)
    for _ in range(count):
        start, length = dice.randrange(len(data)), dice.randrange(1, 200)
        stretch = data[start : start + length]
        name, piece = dice.choice(
            (
                ("a bit flipped", bytes([data[start] ^ (1 << dice.randrange(8))]) + data[start + 1 :]),
                ("zeroed", bytes(len(stretch)) + data[start + length :]),
                ("doubled", stretch + stretch + data[start + length :]),
                ("removed", data[start + length :]),
                ("cut off", b""),
                ("replaced", dice.randbytes(len(stretch)) + data[start + length :]),
            )
        )
        yield f"{name} at {start}", data[:start] + piece


@contextmanager
def little_memory(gigabytes: int = 4) -> Iterator[None]:
    """Let the process have only so much more memory: a case that asks for all of it fails, and not the machine."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + gigabytes * 2**30, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def works_or_is_refused(case: str, work: Callable[[], T], *, naming: str = "") -> T | None:
    """What `work` gives, or None if it refused its input as it should: in one sentence that holds `naming`."""
    try:
        return work()
    except InputError as error:
        text = str(error)
        assert text.strip(), f"{case}: refused without a word"
        assert "\n" not in text, f"{case}: refused in several lines: {text}"
        assert naming in text, f"{case}: {naming} is not named in: {text}"
        return None
    except Exception as error:
        raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
