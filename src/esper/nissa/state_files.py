"""Tensors in plain containers on disk: sealed files, read without running code and without trusting a flipped bit.

A file is what `torch.save` writes, and `torch.load` reads it. Its seal, a SHA-256 digest of everything before it, is
the comment of that zip archive: torch itself checks no checksums when it loads.

What was read is checked piece by piece before anything is built from it: each `checked_…` hands back what it was given,
in its type, or raises an `InputError` that names the place in the state, as in "counters.updates must be a whole number
from 0 on; got -3". Whoever reads the file adds which file it is.
"""

import hashlib
import io
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from esper.leyline import DamagedFileError, InputError

_SEAL = b"sha256:"
_SEAL_LENGTH = len(_SEAL) + 2 * hashlib.sha256().digest_size
_END_OF_ARCHIVE = b"PK\x05\x06"
_END_LENGTH = 22
"""Bytes of the record that ends a zip archive without a comment; the last two hold the length of the comment."""
_LONGEST_SHOWN = 80
"""Characters of a wrong value that a message shows."""
LARGEST_NUMBER = 2**62
"""Whole numbers beyond this are none that any counter or size reaches."""


def pack_state(state: Mapping[str, Any]) -> bytes:
    """`state`, which holds tensors and built-in types, as the bytes of a sealed file."""
    packed = io.BytesIO()
    torch.save(dict(state), packed)
    data = packed.getvalue()
    if not data[-_END_LENGTH:].startswith(_END_OF_ARCHIVE):
        raise RuntimeError("torch.save no longer ends its archives without a comment; the seal has no place")
    body = data[:-2] + _SEAL_LENGTH.to_bytes(2, "little")
    return body + _seal(body)


def read_state(path: Path, what: str, remedy: str) -> dict[str, Any]:
    """The state in the sealed file at `path`, on the CPU.

    A missing, damaged or foreign file is one error, which names the file, `what` it should be and the `remedy`.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a device may have no end
            raise InputError(f"{path} is not a file, and so no {what}; {remedy}")
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"there is no {what} at {path}; {remedy}") from None
    except OSError as error:
        raise InputError(f"the {what} {path} cannot be read ({error.strerror}); {remedy}") from None
    body, seal = data[:-_SEAL_LENGTH], data[-_SEAL_LENGTH:]
    if not seal.startswith(_SEAL):
        raise DamagedFileError(f"{path} is cut short or is no {what}; {remedy}")
    if seal != _seal(body):
        raise DamagedFileError(f"{path} is damaged: its contents do not match its checksum; {remedy}")
    try:
        state = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as error:  # torch raises many kinds; a sealed file can still hold what nobody should load
        raise DamagedFileError(f"{path} is no {what} ({type(error).__name__}); {remedy}") from error
    if not isinstance(state, dict):
        raise DamagedFileError(f"{path} is no {what}: it holds {type(state).__name__}; {remedy}")
    # Nothing here is ever saved sparse, and sparse tensors pass checks of shapes only to fail where they are used.
    if any(isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided for leaf in tree_leaves(state)):
        raise DamagedFileError(f"{path} is no {what}: it holds sparse tensors; {remedy}")
    return state


def _seal(body: bytes) -> bytes:
    return _SEAL + hashlib.sha256(body).hexdigest().encode()


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
    fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
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
