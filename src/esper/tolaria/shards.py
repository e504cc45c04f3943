"""Hosts shared out over devices or workers, and what the shards say of them joined again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from esper.kasmina import Catalogue

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shard:
    """The hosts `first_host` to `first_host + num_hosts - 1` of an environment."""

    first_host: int
    num_hosts: int

    @property
    def hosts(self) -> slice:
        """Their places in tensors of all hosts."""
        return slice(self.first_host, self.first_host + self.num_hosts)

    def __contains__(self, host: int) -> bool:
        return 0 <= host - self.first_host < self.num_hosts


def share_out(num_hosts: int, parts: int) -> list[Shard]:
    """Consecutive shards whose sizes differ by one at most."""
    bounds = [num_hosts * part // parts for part in range(parts + 1)]
    return [Shard(first, after - first) for first, after in pairwise(bounds)]


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
        return type(first)(*(_join([getattr(part, spec.name) for part in parts]) for spec in fields(first)))
    if isinstance(first, int | float | str | tuple | None):
        return first
    raise TypeError(f"what shards say of their hosts must be tensors in dataclasses; got {type(first).__name__}")
