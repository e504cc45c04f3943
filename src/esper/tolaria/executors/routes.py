"""Which rows meet which seeds on their way through N stacked hosts.

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

>>> training.branch_owner.tolist(), training.branch_slot.tolist(), Branch(int(training.branch_kind)).name
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
>>> validation.branch_slot.tolist(), Branch(int(validation.branch_kind)).name
([1], 'LEAVES_OUT')
>>> validation.crossings[1].left_out.tolist(), validation.crossings[1].passing
([0], ())
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from esper.kasmina import SlotTable

Owners = Mapping[int, Tensor]
"""Blueprint id to the hosts that have such a seed, ascending: the groups of one slot."""


class Branch(IntEnum):
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

    def births(self) -> list[tuple[Tensor, Branch]]:
        """The hosts of the branches that begin here, in the order in which they do, and what they are for."""
        whole, tries = self.tried[: self.num_whole], self.tried[self.num_whole :]
        kinds = ((self.left_out, Branch.LEAVES_OUT), (whole, Branch.HAS_WHOLE), (tries, Branch.TRIES))
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
    """`[K]`: codes of `Branch`."""


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
