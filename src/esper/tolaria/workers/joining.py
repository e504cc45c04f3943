"""Joining what shards say into what one environment of all hosts would say."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from esper.kasmina import Catalogue

T = TypeVar("T")


def join(parts: Sequence[T]) -> T:
    """One record of all hosts from the records of consecutive shards.

    Tensors are over hosts and are joined; a catalogue and plain values tell of the kind of host, and are taken once.
    """
    return cast(T, _join(parts))


def _join(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    if isinstance(first, Catalogue):
        return first
    if isinstance(first, Mapping):
        return {name: _join([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(_join(column) for column in zip(*parts, strict=True)))
    if is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in fields(first)]
        return type(first)(**{name: _join([getattr(part, name) for part in parts]) for name in names})
    if isinstance(first, int | float | str | tuple | None):
        return first
    raise TypeError(f"what shards say of their hosts must be tensors in dataclasses; got {type(first).__name__}")
