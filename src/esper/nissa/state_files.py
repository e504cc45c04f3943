"""Tensors in plain containers on disk: one sealed file, read without running code and without trusting a flipped bit.

The file is what `torch.save` writes, and `torch.load` reads it. Its seal, a SHA-256 digest of everything before it, is
the comment of that zip archive: torch itself checks no checksums when it loads.
"""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from esper.leyline import DamagedFileError, InputError

_SEAL = b"sha256:"
_SEAL_LENGTH = len(_SEAL) + 2 * hashlib.sha256().digest_size
_END_OF_ARCHIVE = b"PK\x05\x06"
_END_LENGTH = 22
"""Bytes of the record that ends a zip archive without a comment; the last two hold the length of the comment."""


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
