"""Rows of stacked hosts and seeds with their optimiser, and the route: which rows meet which seeds on their way.

A forward pass carries one row per host, the *trunk*, and *branches*: rows that leave a host's trunk at a slot to
see what the rest of the network makes of another alpha there. In training a branch teaches an isolated seed (its
alpha is 1, everything else is detached); in validation it leaves a blended seed out (alpha 0), shows what an isolated
one would do at alpha 1, or tries the next alpha of any. What lies before the slot is shared with the trunk.

An example: two hosts with two slots each. Host 0 has no seeds. Host 1 has an isolated seed of kind 3 in slot 0, and
one of kind 1 in slot 1 that is blended in at alpha 0.5. This is what a pass in training carries, from left to right:

    host 0   ────────────────────────────────────────▶ logits
    host 1   ──┬──────────────────── + 0.5 · seed ───▶ logits
    branch 0   └─ + 1 · seed ─────── + 0.5 · seed ───▶ logits, from which the seed in slot 0 learns

>>> from esper.leyline import Stage
>>> table = SlotTable.empty(2, 2)
>>> table.stage[1] = torch.tensor([Stage.TRAINING, Stage.BLENDING])
>>> table.alpha[1] = torch.tensor([0.0, 0.5])
>>> planted = [{3: torch.tensor([1])}, {1: torch.tensor([1])}]  # by slot: kind to the hosts that have it
>>> training = plan_route(planted, table, leave_out=False, whole=True)

One branch, of host 1, is born at slot 0 to run with its isolated seed as a whole:

>>> training.branch_owner.tolist(), training.branch_slot.tolist(), BranchKind(int(training.branch_kind)).name
([1], [0], 'HAS_WHOLE')

At slot 0 there is one seed, at position 0. It is not blended, so that the trunk passes it by, and it is tried at 1:

>>> first, second = training.crossings
>>> first.groups, first.owner.tolist(), first.blended_at.tolist()
((3,), [1], [])
>>> first.tried.tolist(), first.tried_alpha.tolist(), first.births()[1][0].tolist()
([0], [1.0], [1])

At slot 1 the seed at position 0 acts on the trunk of host 1. Of its group, number 0, branch 0 meets seed 0 as well:

>>> second.blended_at.tolist(), second.blended_owner.tolist(), second.alpha.tolist()
([0], [1], [0.5])
>>> [(group, branches.tolist(), seeds.tolist()) for group, branches, seeds in second.passing]
[(0, [0], [0])]

In validation the isolated seed has no part, and host 1 gets a branch at slot 1 that runs without the blended one:

>>> validation = plan_route(planted, table, leave_out=True, whole=False)
>>> validation.branch_slot.tolist(), BranchKind(int(validation.branch_kind)).name
([1], 'LEAVES_OUT')
>>> validation.crossings[1].left_out.tolist(), validation.crossings[1].passing
([0], ())
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import Self

import torch
from torch import Tensor

from esper.kasmina import SlotTable
from esper.kasmina.torch_private import adamw_step, clip_factors, sgd_step
from esper.tasks import OptimizerSettings
from esper.tolaria.records import join

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


Owners = Mapping[int, Tensor]
"""Blueprint id to the hosts that have such a seed, ascending: the groups of one slot."""


class BranchKind(IntEnum):
    """What a branch is for."""

    LEAVES_OUT = 0
    """It runs without a blended seed."""
    HAS_WHOLE = 1
    """It runs with an isolated seed at alpha 1, in training so that the seed learns."""
    TRIES = 2
    """It runs with a seed at the alpha that it would get next."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """What happens at one slot. Positions count through the seeds of all groups of the slot, group by group."""

    groups: tuple[int, ...]
    """Blueprint ids, in the order of their seeds."""
    sizes: tuple[int, ...]
    owner: Tensor
    """The host of each seed."""
    blended_at: Tensor
    """Positions of the blended seeds, which act on the trunk."""
    blended_owner: Tensor
    """Their hosts."""
    alpha: Tensor
    """Of the blended seeds."""
    left_out: Tensor
    """Positions of blended seeds whose host gets a branch without them."""
    tried: Tensor
    """Positions of seeds whose host gets a branch with them at another alpha: first those of `HAS_WHOLE`."""
    tried_alpha: Tensor
    """These alphas."""
    num_whole: int
    """How many of `tried` are for `HAS_WHOLE`."""
    passing: tuple[tuple[int, Tensor, Tensor], ...]
    """Per group: its place in `groups`, the earlier branches that meet a blended seed there, and which seed."""
    passing_alpha: Tensor
    """Alphas of those seeds, in that order."""

    def by_group(self) -> tuple[list[Tensor], list[Tensor]]:
        """Of each group: the hosts of its seeds, and which of them, counted in the group, are blended."""
        starts = accumulate(self.sizes, initial=0)
        blended = [self.blended_at[(self.blended_at >= a) & (self.blended_at < b)] - a for a, b in pairwise(starts)]
        return list(self.owner.split(self.sizes)), blended

    def births(self) -> list[tuple[Tensor, BranchKind]]:
        """The hosts of the branches that begin here, in the order in which they do, and what they are for."""
        whole, tries = self.tried[: self.num_whole], self.tried[self.num_whole :]
        kinds = ((self.left_out, BranchKind.LEAVES_OUT), (whole, BranchKind.HAS_WHOLE), (tries, BranchKind.TRIES))
        return [(self.owner[positions], kind) for positions, kind in kinds]


@dataclass(frozen=True, slots=True)
class Route:
    """The crossings of all slots, None where no host has a seed, and which branches there are in the end."""

    crossings: tuple[Crossing | None, ...]
    branch_owner: Tensor
    """`[K]`: the host of each branch, in order of birth."""
    branch_slot: Tensor
    """`[K]`: the slot where it was born."""
    branch_kind: Tensor
    """`[K]`: codes of `BranchKind`."""


def plan_route(
    slots: Sequence[Owners], table: SlotTable, *, leave_out: bool, whole: bool, trials: Tensor | None = None
) -> Route:
    """The route through hosts whose slots hold `slots`: with which kinds of branches.

    `trials [N, S]` are the alphas of branches that try one; NaN where there is none.
    """
    isolated = table.isolated
    tries = torch.full_like(table.alpha, torch.nan) if trials is None else trials
    crossings: list[Crossing | None] = []
    none = torch.empty(0, dtype=torch.int64)
    owners, births = none, [(none, none, none)]
    # From the first slot to the last, because the branches that are born at one slot meet the seeds of those behind it.
    for slot, groups in enumerate(slots):
        if not groups:
            crossings.append(None)
            continue
        columns = table.alpha[:, slot], isolated[:, slot], tries[:, slot]
        crossing = _plan_crossing(groups, *columns, owners, leave_out=leave_out, whole=whole)
        births += [(born, torch.full_like(born, slot), torch.full_like(born, kind)) for born, kind in crossing.births()]
        owners = torch.cat([born for born, _, _ in births])
        crossings.append(crossing)
    return Route(tuple(crossings), *(torch.cat(column) for column in zip(*births, strict=True)))


def _plan_crossing(
    groups: Owners, alpha: Tensor, isolated: Tensor, tries: Tensor, branches: Tensor, *, leave_out: bool, whole: bool
) -> Crossing:
    """One slot, whose columns of the table, `[N]` each, are given; `branches` are the hosts of those born before it."""
    # Which seeds act on the trunk, and which are shown to branches that begin here.
    owner = torch.cat(list(groups.values()))
    blended_at, isolated_at = ((isolated[owner] == kind).nonzero().flatten() for kind in (False, True))
    none = blended_at[:0]
    shown = isolated_at if whole else none
    tried_at = (~tries[owner].isnan()).nonzero().flatten()

    # Which of the earlier branches meet a blended seed here.
    passing = []
    for place, group_owner in enumerate(groups.values()):
        # Where each host's seed is in this group; -1 for hosts without a blended one.
        local = torch.full_like(isolated, -1, dtype=torch.int64)
        local[group_owner] = torch.arange(len(group_owner)).where(~isolated[group_owner], -1)
        meets = (local[branches] >= 0).nonzero().flatten()
        if len(meets):
            passing.append((place, meets, local[branches[meets]]))
    passing_owner = [branches[meets] for _, meets, _ in passing]
    return Crossing(
        tuple(groups),
        tuple(len(hosts) for hosts in groups.values()),
        owner,
        blended_at,
        owner[blended_at],
        alpha[owner[blended_at]],
        blended_at if leave_out else none,
        torch.cat([shown, tried_at]),
        torch.cat([torch.ones(len(shown)), tries[owner[tried_at]]]),
        len(shown),
        tuple(passing),
        alpha[torch.cat([none, *passing_owner])],
    )
