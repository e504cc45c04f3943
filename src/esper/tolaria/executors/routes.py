"""Which rows meet which seeds on their way through N stacked hosts.

A forward pass carries one row per host, the *trunk*, and *branches*: rows that leave a host's trunk at a slot to
see what the rest of the network makes of another alpha there. In training a branch teaches an isolated seed (its
alpha is 1, everything else is detached); in validation it leaves a blended seed out (alpha 0), shows what an isolated
one would do at alpha 1, or tries the next alpha of any. What lies before the slot is shared with the trunk.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

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
        starts = list(itertools.accumulate(self.sizes, initial=0))
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
    for slot, groups in enumerate(slots):
        if not groups:
            crossings.append(None)
            continue
        crossing = _cross(groups, table.alpha[:, slot], isolated[:, slot], tries[:, slot], owners, leave_out, whole)
        births += [(born, torch.full_like(born, slot), torch.full_like(born, kind)) for born, kind in crossing.births()]
        owners = torch.cat([born for born, _, _ in births])
        crossings.append(crossing)
    return Route(tuple(crossings), *(torch.cat(column) for column in zip(*births, strict=True)))


def _cross(
    groups: Owners,
    alpha: Tensor,
    isolated: Tensor,
    tries: Tensor,
    branches: Tensor,
    leave_out: bool,
    whole: bool,
) -> Crossing:
    owner = torch.cat(list(groups.values()))
    blended_at, isolated_at = ((isolated[owner] == kind).nonzero().flatten() for kind in (False, True))
    none = blended_at[:0]
    shown = isolated_at if whole else none
    tried_at = (~tries[owner].isnan()).nonzero().flatten()
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
