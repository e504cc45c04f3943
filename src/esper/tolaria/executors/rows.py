"""Parameters of many copies of one module as rows of a matrix, and an optimiser that steps them all at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Self

import torch
from torch import Tensor, nn

from esper.kasmina.gradients import clip_factors
from esper.kasmina.torch_private import adamw_step, sgd_step
from esper.tasks import OptimizerSettings
from esper.tolaria.shards import join

GroupKey = tuple[int, int]
"""Slot and blueprint id: seeds that have both in common are one group."""


@dataclass(slots=True)
class Rows:
    """R copies of a module's parameters with what the optimiser keeps about them; a row is one copy, flattened."""

    owner: Tensor
    """`[R]`: the host of each row, ascending."""
    weights: Tensor
    """`[R, P]`"""
    first: Tensor
    """`[R, P]`: running mean of the gradient, or momentum."""
    second: Tensor
    """`[R, P]`: running mean of its square; no columns where the optimiser keeps none."""
    steps: Tensor
    """`[R]`: optimiser steps taken."""

    @classmethod
    def fresh(cls, owners: Sequence[int], weights: Tensor, settings: OptimizerSettings) -> Self:
        """New rows that no optimiser has seen."""
        second = torch.zeros_like(weights if settings.name == "adamw" else weights[:, :0])
        steps = torch.zeros(len(weights), dtype=weights.dtype)
        return cls(torch.tensor(owners, dtype=torch.int64), weights, torch.zeros_like(weights), second, steps)

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """The rows of all parts in the order of their owners."""
        joined = join(parts)
        return joined.select(joined.owner.argsort())

    def select(self, index: Tensor) -> Self:
        """A copy of some of the rows: `index` are positions, or a bool for each row."""
        return type(self)(*(getattr(self, spec.name)[index] for spec in fields(self)))

    def clone(self) -> Self:
        return type(self)(*(getattr(self, spec.name).clone() for spec in fields(self)))


@dataclass(slots=True)
class AllRows:
    """The rows of all hosts, and of all seeds group by group."""

    hosts: Rows
    seeds: dict[GroupKey, Rows] = field(default_factory=dict)

    def clone(self) -> Self:
        return type(self)(self.hosts.clone(), {key: rows.clone() for key, rows in self.seeds.items()})

    def groups(self) -> list[Rows]:
        """The hosts, then each group of seeds."""
        return [self.hosts, *self.seeds.values()]

    def set_seeds(self, key: GroupKey, parts: Sequence[Rows]) -> None:
        """Let these be the seeds of a group, which is gone if there are none; groups stay in order."""
        rows = Rows.merged(parts)
        self.seeds.pop(key, None)
        if len(rows.owner):
            self.seeds = dict(sorted([*self.seeds.items(), (key, rows)]))


def flatten(module: nn.Module) -> Tensor:
    return torch.cat([torch.empty(0), *(parameter.detach().flatten() for parameter in module.parameters())])


def views(matrix: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Views of `matrix [R, P]` as stacked tensors `[R, *shape]`."""
    pieces = matrix.split([shape.numel() for shape in shapes], 1)
    return [piece.view(-1, *shape) for piece, shape in zip(pieces, shapes, strict=True)]


def leaves(weights: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Views of `weights [R, P]` as stacked parameters `[R, *shape]` that gradients can be taken of."""
    return [view.detach().requires_grad_() for view in views(weights, shapes)]


def clip_rows(gradients: Sequence[Tensor], max_norm: float) -> list[Tensor]:
    """Scale each row of each `[R, P]` down to `max_norm`, in place; returns the norms before, `[R]` each."""
    norms = [torch.linalg.vector_norm(gradient, dim=1) for gradient in gradients]
    for gradient, norm in zip(gradients, norms, strict=True):
        factors = clip_factors(norm, max_norm)
        if not bool((factors >= 1).all()):  # often there is nothing to scale, and a pass over memory to save
            gradient.mul_(factors.clamp_(max=1.0)[:, None])
    return norms


class RowOptimizer:
    """Steps the rows of hosts and of groups of seeds for as long as no row comes or goes, say for an epoch.

    Rows whose hosts began at the same step share a learning rate; torch's fused kernels step all of them in one call,
    each with its own step count, and read and write every number once.
    """

    def __init__(self, groups: Sequence[Rows], starts: Tensor, how: OptimizerSettings) -> None:
        """`groups`: the hosts first. `starts [N]`: the step at which each host begins."""
        self._groups = groups
        self._how = how
        # Cohorts share a learning rate: by the step at which they begin, and whether they are seeds.
        self._cohorts: dict[tuple[int, bool], list[int]] = {}
        owners = [(owner, number > 0) for number, group in enumerate(groups) for owner in group.owner.tolist()]
        began = starts.tolist()
        for place, (owner, is_seed) in enumerate(owners):
            self._cohorts.setdefault((began[owner], is_seed), []).append(place)
        # Views of single rows, which is what the kernels take.
        columns = (spec.name for spec in fields(Rows) if spec.name != "owner")
        self._rows = {name: [row for group in groups for row in getattr(group, name).unbind()] for name in columns}

    def step(self, gradients: Sequence[Tensor], rates: Mapping[int, float]) -> None:
        """One step along `gradients`, `[R, P]` for each group; `rates` has a learning rate for each of `starts`."""
        gradient_rows = [row for gradient in gradients for row in gradient.unbind()]
        for group in self._groups:
            group.steps += 1
        for (start, is_seed), places in self._cohorts.items():
            rate = rates[start] * (self._how.seed_lr_scale if is_seed else 1.0)
            weights, first, second, steps = ([rows[place] for place in places] for rows in self._rows.values())
            along, decay = [gradient_rows[place] for place in places], self._how.weight_decay
            if self._how.name == "adamw":
                adamw_step(weights, along, first, second, steps, lr=rate, weight_decay=decay)
            else:
                sgd_step(weights, along, first, lr=rate, weight_decay=decay, momentum=self._how.momentum)
