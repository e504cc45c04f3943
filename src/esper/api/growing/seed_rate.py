"""A learning rate of their own for seeds, which nobody who counts parameter groups notices.

Seeds stand in the group of their neighbour. A group that is added later would break most schedulers: they keep a list
with one entry for each group that there was when they were made. So seeds have groups of their own for as long as the
optimiser steps, and not between two steps.
"""

import math
import operator
from itertools import compress
from typing import Any

from torch.optim import Optimizer

from esper.kasmina import GraftedModel
from esper.leyline import InputError

_LISTS = ("params", "param_names")
"""Entries of a group that have one item for each parameter."""


_Lists = dict[str, list[Any]]


class SeedRate:
    """Lets the seeds of one model learn at `scale` times the present rate of the group that they are in."""

    def __init__(self, optimizer: Optimizer, grafted: GraftedModel, scale: float) -> None:
        self._optimizer = optimizer
        self._grafted = grafted
        self._scale = scale
        self._whole: list[tuple[dict[str, Any], dict[str, list[Any]]]] = []
        """While the optimiser steps: the groups that seeds were taken out of, and their lists as they were."""
        self._apart: list[dict[str, Any]] = []
        self._sorted: dict[int, tuple[tuple[Any, ...], tuple[_Lists, _Lists, _Lists] | None]] = {}
        """By group: its parameters when they were sorted, and what came of it."""
        if scale != 1.0:
            optimizer.register_step_pre_hook(self._part)
            optimizer.register_step_post_hook(lambda *_: self.join())

    def _part(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        self.join()
        if self._grafted.growth.abandoned:
            return
        for group in optimizer.param_groups:
            lists = self._lists_of(group)
            if lists is None:
                continue
            whole, host, own = lists
            for key, items in host.items():
                group[key][:] = items
            self._whole.append((group, whole))
            self._apart.append({**group, **own, "lr": group["lr"] * self._scale})
        optimizer.param_groups.extend(self._apart)

    def _lists_of(self, group: dict[str, Any]) -> tuple[_Lists, _Lists, _Lists] | None:
        """All of a group, its part without seeds, and its seeds; None without any. Sorted anew only if it changed."""
        known, lists = self._sorted.get(id(group), ((), None))
        present = group["params"]
        if len(known) != len(present) or not all(map(operator.is_, known, present)):
            seeds = {id(parameter) for parameter in self._grafted.slots.parameters()}
            is_seed = [id(parameter) in seeds for parameter in present]
            whole = {key: list(group[key]) for key in _LISTS if key in group}
            host = {key: list(compress(items, [not seed for seed in is_seed])) for key, items in whole.items()}
            own = {key: list(compress(items, is_seed)) for key, items in whole.items()}
            lists = (whole, host, own) if any(is_seed) else None
            self._sorted[id(group)] = tuple(present), lists
        return lists

    def join(self) -> None:
        """Put seeds back into the groups of their neighbours, after a step and after one that raised on its way."""
        if not self._apart:
            return
        for group, whole in self._whole:
            for key, items in whole.items():
                group[key][:] = items
        own = {id(group) for group in self._apart}
        groups = self._optimizer.param_groups
        groups[:] = [group for group in groups if id(group) not in own]
        self._whole, self._apart = [], []


def checked_seed_lr_scale(scale: float) -> float:
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < math.inf:
        raise InputError(f"seed_lr_scale must be a finite number above 0; got {scale!r}")
    return float(scale)
