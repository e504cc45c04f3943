"""Parameters of many copies of one module as rows of a matrix, and an optimiser that steps them all at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor, nn

from esper.tasks import OptimizerSettings
from esper.tolaria.executors.base import CLIP_EPS

_BETAS = (0.9, 0.999)
_EPS = 1e-8


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
        joined = cls(*(torch.cat([getattr(part, spec.name) for part in parts]) for spec in fields(cls)))
        return joined.select(joined.owner.argsort())

    def select(self, index: Tensor) -> Self:
        """A copy of some of the rows: `index` are positions, or a bool for each row."""
        return type(self)(*(getattr(self, spec.name)[index] for spec in fields(self)))

    def clone(self) -> Self:
        """A copy."""
        return type(self)(*(getattr(self, spec.name).clone() for spec in fields(self)))


def flatten(module: nn.Module) -> Tensor:
    """All parameters of `module` as one row."""
    return torch.cat([torch.empty(0), *(parameter.detach().flatten() for parameter in module.parameters())])


def views(matrix: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Views of `matrix [R, P]` as stacked tensors `[R, *shape]`."""
    pieces = matrix.split([shape.numel() for shape in shapes], 1)
    return [piece.view(-1, *shape) for piece, shape in zip(pieces, shapes, strict=True)]


def leaves(weights: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Views of `weights [R, P]` as stacked parameters `[R, *shape]` that gradients can be taken of."""
    return [view.detach().requires_grad_() for view in views(weights, shapes)]


def clip(gradients: Sequence[Tensor], max_norm: float) -> list[Tensor]:
    """Scale each row of each `[R, P]` down to `max_norm`, in place; returns the norms before, `[R]` each."""
    norms = [torch.linalg.vector_norm(gradient, dim=1) for gradient in gradients]
    for gradient, norm in zip(gradients, norms, strict=True):
        scale = max_norm / (norm + CLIP_EPS)
        if bool((scale < 1).any()):  # often there is nothing to scale, and a pass over memory to save
            gradient.mul_(scale.clamp_(max=1.0)[:, None])
    return norms


class RowOptimizer:
    """Steps the rows of hosts and of groups of seeds for as long as no row comes or goes, say for an epoch.

    Rows whose hosts began at the same step share a learning rate; torch's fused kernels step all of them in one call,
    each with its own step count, and read and write every number once.
    """

    def __init__(self, groups: Sequence[Rows], starts: Tensor, how: OptimizerSettings) -> None:
        self._groups = groups
        self._how = how
        self._cohorts: dict[tuple[int, bool], list[int]] = {}
        owners = [(owner, place > 0) for place, group in enumerate(groups) for owner in group.owner.tolist()]
        began = starts.tolist()
        for place, (owner, is_seed) in enumerate(owners):
            self._cohorts.setdefault((began[owner], is_seed), []).append(place)
        columns = (spec.name for spec in fields(Rows) if spec.name != "owner")
        self._rows = {name: [row for group in groups for row in getattr(group, name).unbind()] for name in columns}

    def step(self, gradients: Sequence[Tensor], rates: Mapping[int, float]) -> None:
        """One step along `gradients`, `[R, P]` for each group; `rates` has a learning rate for each of `starts`."""
        rows = [row for gradient in gradients for row in gradient.unbind()]
        for group in self._groups:
            group.steps += 1
        run = self._adamw if self._how.name == "adamw" else self._sgd
        for (start, is_seed), places in self._cohorts.items():
            rate = rates[start] * (self._how.seed_lr_scale if is_seed else 1.0)
            run([rows[place] for place in places], places, rate)

    def _adamw(self, gradients: list[Tensor], places: list[int], rate: float) -> None:
        torch._fused_adamw_(
            self._column("weights", places),
            gradients,
            self._column("first", places),
            self._column("second", places),
            [],
            self._column("steps", places),
            amsgrad=False,
            lr=rate,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            weight_decay=self._how.weight_decay,
            eps=_EPS,
            maximize=False,
        )

    def _sgd(self, gradients: list[Tensor], places: list[int], rate: float) -> None:
        torch._fused_sgd_(
            self._column("weights", places),
            gradients,
            self._column("first", places),
            weight_decay=self._how.weight_decay,
            momentum=self._how.momentum,
            lr=rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )

    def _column(self, name: str, places: list[int]) -> list[Tensor]:
        column = self._rows[name]
        return [column[place] for place in places]
