"""Which rows meet which seeds on their way through N stacked hosts.

A forward pass carries one row per host, the *trunk*, and *branches*: rows that leave a host's trunk at a slot to
see what the rest of the network makes of another alpha there. In training a branch teaches an isolated seed (its
alpha is 1, everything else is detached); in validation it leaves a blended seed out, or tries an isolated one. What
lies before the slot is shared with the trunk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.kasmina import SlotTable
from esper.leyline import Stage

Owners = Mapping[int, Tensor]
"""Blueprint id to the hosts that have such a seed, ascending: the groups of one slot."""


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
    """Positions of isolated seeds whose host gets a branch with them at alpha 1."""
    passing: tuple[tuple[int, Tensor, Tensor], ...]
    """Per group: its place in `groups`, the earlier branches that meet a blended seed there, and which seed."""
    passing_alpha: Tensor
    """Alphas of those seeds, in that order."""


@dataclass(frozen=True, slots=True)
class Route:
    """The crossings of all slots, None where no host has a seed, and which branches there are in the end."""

    crossings: tuple[Crossing | None, ...]
    branch_owner: Tensor
    """`[K]`: the host of each branch, in order of birth."""
    branch_slot: Tensor
    """`[K]`: the slot where it was born."""
    branch_tries: Tensor
    """`[K]` bool: it tries an isolated seed, rather than leaving a blended one out."""


def plan_route(slots: Sequence[Owners], table: SlotTable, *, leave_out: bool, try_out: bool) -> Route:
    """The route through hosts whose slots hold `slots`: with which kinds of branches."""
    isolated = torch.isin(table.stage, torch.tensor([Stage.GERMINATED, Stage.TRAINING]))
    crossings: list[Crossing | None] = []
    owners = torch.empty(0, dtype=torch.int64)
    births: list[tuple[Tensor, int, bool]] = []
    for slot, groups in enumerate(slots):
        if not groups:
            crossings.append(None)
            continue
        crossing = _cross(groups, table.alpha[:, slot], isolated[:, slot], owners, leave_out, try_out)
        births += [(crossing.owner[crossing.left_out], slot, False), (crossing.owner[crossing.tried], slot, True)]
        owners = torch.cat([owners, births[-2][0], births[-1][0]])
        crossings.append(crossing)
    slot_of = [torch.full((len(born),), slot) for born, slot, _ in births]
    tries = [torch.full((len(born),), tried) for born, _, tried in births]
    empty = torch.empty(0, dtype=torch.int64)
    return Route(tuple(crossings), owners, torch.cat([empty, *slot_of]), torch.cat([empty.bool(), *tries]))


def _cross(
    groups: Owners, alpha: Tensor, isolated: Tensor, branches: Tensor, leave_out: bool, try_out: bool
) -> Crossing:
    owner = torch.cat(list(groups.values()))
    blended_at, isolated_at = ((isolated[owner] == kind).nonzero().flatten() for kind in (False, True))
    none = blended_at[:0]
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
        isolated_at if try_out else none,
        tuple(passing),
        alpha[torch.cat([none, *passing_owner])],
    )
