"""A learning rate of their own for seeds, which nobody who counts parameter groups notices.

Seeds stand in the group of their neighbour. A group that is added later would break most schedulers: they keep a list
with one entry for each group that there was when they were made. So seeds have groups of their own for as long as the
optimiser steps, and not between two steps.
"""

import math
from itertools import compress
from typing import Any

from torch.optim import Optimizer

from esper.kasmina import GraftedModel
from esper.leyline import InputError

_LISTS = ("params", "param_names")
"""Entries of a group that have one item for each parameter."""


class SeedRate:
    """Lets the seeds of one model learn at `scale` times the present rate of the group that they are in."""

    def __init__(self, optimizer: Optimizer, grafted: GraftedModel, scale: float) -> None:
        self._optimizer = optimizer
        self._grafted = grafted
        self._scale = scale
        self._whole: list[tuple[dict[str, Any], dict[str, list[Any]]]] = []
        """While the optimiser steps: the groups that seeds were taken out of, and their lists as they were."""
        self._apart: list[dict[str, Any]] = []
        if scale != 1.0:
            optimizer.register_step_pre_hook(self._part)
            optimizer.register_step_post_hook(lambda *_: self.join())

    def _part(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        self.join()
        if self._grafted.growth.abandoned:
            return
        seeds = {id(parameter) for parameter in self._grafted.slots.parameters()}
        for group in list(optimizer.param_groups) if seeds else ():
            is_seed = [id(parameter) in seeds for parameter in group["params"]]
            if not any(is_seed):
                continue
            whole = {key: list(group[key]) for key in _LISTS if key in group}
            own = {key: list(compress(items, is_seed)) for key, items in whole.items()}
            for key, items in whole.items():
                group[key][:] = compress(items, [not seed for seed in is_seed])
            self._whole.append((group, whole))
            self._apart.append({**group, **own, "lr": group["lr"] * self._scale})
        optimizer.param_groups.extend(self._apart)

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
    """A factor on a learning rate: a finite number above 0."""
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < math.inf:
        raise InputError(f"seed_lr_scale must be a finite number above 0; got {scale!r}")
    return float(scale)
