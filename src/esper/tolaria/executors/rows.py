"""Parameters of many copies of one module as rows of a matrix, and an optimiser that steps them all at once."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor, nn

from esper.tolaria.tasks import OptimizerSettings

_BETAS = (0.9, 0.999)
_EPS = 1e-8
_CLIP_EPS = 1e-6


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
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def leaves(weights: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Views of `weights [R, P]` as stacked parameters `[R, *shape]` that gradients can be taken of."""
    sizes = [shape.numel() for shape in shapes]
    pieces = weights.split(sizes, 1)
    return [piece.view(-1, *shape).detach().requires_grad_() for piece, shape in zip(pieces, shapes, strict=True)]


def clip(gradients: Sequence[Tensor], max_norm: float) -> list[Tensor]:
    """Scale each row of each `[R, P]` down to `max_norm`, in place; returns the norms before, `[R]` each."""
    norms = [torch.linalg.vector_norm(gradient, dim=1) for gradient in gradients]
    for gradient, norm in zip(gradients, norms, strict=True):
        gradient.mul_((max_norm / (norm + _CLIP_EPS)).clamp_(max=1.0)[:, None])
    return norms


def step(groups: Sequence[Rows], gradients: Sequence[Tensor], rates: Sequence[Tensor], how: OptimizerSettings) -> None:
    """One optimiser step of all groups, each row with its own learning rate (`rates`, `[R]` each) and step count."""
    (_adamw if how.name == "adamw" else _sgd)(groups, gradients, rates, how)


def _adamw(
    groups: Sequence[Rows], gradients: Sequence[Tensor], rates: Sequence[Tensor], how: OptimizerSettings
) -> None:
    first_beta, second_beta = _BETAS
    firsts, seconds = [rows.first for rows in groups], [rows.second for rows in groups]
    torch._foreach_lerp_(firsts, list(gradients), 1 - first_beta)
    torch._foreach_mul_(seconds, second_beta)
    torch._foreach_addcmul_(seconds, list(gradients), list(gradients), 1 - second_beta)
    for rows, denominator, rate in zip(groups, torch._foreach_sqrt(seconds), rates, strict=True):
        rows.steps += 1
        denominator.div_((1 - second_beta**rows.steps).sqrt_()[:, None]).add_(_EPS)
        stride = -rate / (1 - first_beta**rows.steps)
        rows.weights.mul_((1 - rate * how.weight_decay)[:, None])
        rows.weights.addcmul_(torch.div(rows.first, denominator, out=denominator), stride[:, None])


def _sgd(groups: Sequence[Rows], gradients: Sequence[Tensor], rates: Sequence[Tensor], how: OptimizerSettings) -> None:
    for rows, gradient, rate in zip(groups, gradients, rates, strict=True):
        gradient.add_(rows.weights, alpha=how.weight_decay)
        rows.first.mul_(how.momentum).add_(gradient)
        rows.weights.addcmul_(rows.first, -rate[:, None])
