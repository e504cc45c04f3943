"""Checking a state that was read from a file, piece by piece, before anything is built from it or changed by it.

Each function hands back what it was given, in its type, or raises an `InputError` that names the place in the state, as
in "counters.updates must be a whole number from 0 on; got -3". Whoever reads the file adds which file it is.
"""

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from esper.leyline import InputError

_LONGEST_SHOWN = 80
"""Characters of a wrong value that a message shows."""
LARGEST_NUMBER = 2**62
"""Whole numbers beyond this are none that any counter or size reaches."""

_LARGEST_FLOAT = sys.float_info.max


def checked_keys(value: object, names: Collection[str], place: str) -> dict[str, Any]:
    """A dictionary with exactly these keys."""
    if not isinstance(value, Mapping):
        raise InputError(f"{place} must hold {', '.join(names)}; got {shown(value)}")
    missing = [name for name in names if name not in value]
    extra = [shown(key) for key in value if key not in names]
    if missing or extra:
        lacks = f"lacks {', '.join(missing)}" if missing else ""
        holds = f"holds {', '.join(extra)}, which do not belong there" if extra else ""
        raise InputError(f"{place} {' and '.join(filter(None, (lacks, holds)))}")
    return dict(value)


def checked_list(value: object, place: str, length: int | None = None) -> list[Any]:
    """A list, of `length` items if that is given."""
    if not isinstance(value, list) or (length is not None and len(value) != length):
        wanted = "a list" if length is None else f"a list of {length}"
        raise InputError(f"{place} must be {wanted}; got {shown(value)}")
    return value


def checked_whole(value: object, place: str, low: int = 0, high: int = LARGEST_NUMBER) -> int:
    """A whole number from `low` to `high`; truth values are none."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        bounds = f"from {low} on" if high == LARGEST_NUMBER else f"from {low} to {high}"
        raise InputError(f"{place} must be a whole number {bounds}; got {shown(value)}")
    return value


def checked_number(value: Any, place: str, low: float = -math.inf) -> float:
    """A finite number of at least `low`."""
    # Compared first: Python's `isfinite` raises for whole numbers that no float can hold.
    fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST_FLOAT
    if not fits or not value >= low:
        wanted = "a finite number" if low == -math.inf else f"a finite number from {low:g} on"
        raise InputError(f"{place} must be {wanted}; got {shown(value)}")
    return float(value)


def checked_tensor(
    value: object, place: str, shape: Sequence[int] | None, dtype: torch.dtype, *, finite: bool = True
) -> Tensor:
    """A plain tensor of this shape (any if None) and number format, without NaN or infinity where `finite`."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        raise InputError(f"{place} must be a tensor; got {shown(value)}")
    if value.dtype != dtype:
        raise InputError(f"{place} must hold {_plain(dtype)}; it holds {_plain(value.dtype)}")
    if shape is not None and tuple(value.shape) != tuple(shape):
        raise InputError(f"{place} must have shape {list(shape)}; it has {list(value.shape)}")
    # A stride of 0 lets a file of a few bytes claim any size.
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise InputError(f"{place} claims more numbers than the file holds for it")
    if finite and not bool(value.isfinite().all()):
        raise InputError(f"{place} holds NaN or infinity")
    return value


def shown(value: object) -> str:
    """`value` in a few characters, for a message."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
        return "a number beyond 2^62"  # Python refuses to print very long ones
    if isinstance(value, Mapping | list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
