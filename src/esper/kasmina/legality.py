"""Which actions are legal, derived from the same table of transitions that the lifecycle obeys."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import torch
from torch import Tensor

from esper.kasmina.blueprints import blueprints_of, num_blueprints
from esper.kasmina.sites import SiteShape
from esper.kasmina.table import SlotTable
from esper.leyline import (
    EPOCHS_TO_DECIDE,
    NO_BLUEPRINT,
    NUM_BLENDS,
    NUM_OPS,
    TRANSITIONS,
    Blend,
    Mover,
    Op,
    Stage,
)

MEASUREMENTS_BEFORE_CULL: Final = 2
"""Counterfactuals a seed is given, once it is blended in or being so, before it may be culled."""
OP_TARGETS: Final = {Op.GERMINATE: Stage.GERMINATED, Op.FOSSILIZE: Stage.FOSSILIZED, Op.CULL: Stage.CULLED}
"""The stage that each op moves its slot into; WAIT moves nothing."""
UNLIMITED = torch.iinfo(torch.int64).max
"""A parameter budget that never binds."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What each blueprint would cost at each slot of a host shape; all fields are `[S, B]`."""

    fits: Tensor
    params: Tensor
    flops: Tensor

    @classmethod
    def of(cls, sites: Sequence[SiteShape]) -> Self:
        shape = (len(sites), num_blueprints())
        catalogue = cls(torch.zeros(shape, dtype=torch.bool), *torch.zeros((2, *shape), dtype=torch.int64))
        for slot, site in enumerate(sites):
            for blueprint in blueprints_of(site.family):
                if blueprint.fits(site):
                    cost = blueprint.cost(site)
                    catalogue.fits[slot, blueprint.id - 1] = True
                    catalogue.params[slot, blueprint.id - 1] = cost.params
                    catalogue.flops[slot, blueprint.id - 1] = cost.flops
        return catalogue

    def planted_flops(self, table: SlotTable) -> Tensor:
        """`[N, S]`: what the seed in each slot adds to a forward pass of one sample; 0 without a seed."""
        chosen = (table.blueprint - 1).clamp(min=0)
        flops = self.flops.expand(table.shape[0], -1, -1).gather(2, chosen[..., None])[..., 0]
        return torch.where(table.blueprint == NO_BLUEPRINT, 0, flops)


@dataclass(frozen=True, slots=True)
class ActionMasks:
    """Legal choices, head by head. Sampling op, then slot given op, then blueprint given slot is always legal.

    | field | shape | meaning |
    |---|---|---|
    | op | [N, O] | the op is legal in some slot |
    | slot | [N, O, S] | the op is legal in this slot; for WAIT only the index 0, which means nothing |
    | blueprint | [N, S, B] | the blueprint fits this slot and the budget left |
    | blend | [N, L] | a seed blended in this way can be decided in the epochs left |
    """

    op: Tensor
    slot: Tensor
    blueprint: Tensor
    blend: Tensor

    def allow(self, actions: Tensor) -> Tensor:
        """`[N]` bool: whether each row of `actions [N, 4]`, its columns in `HEAD_NAMES` order, is legal."""
        slot, blueprint, blend, op = actions.unbind(1)
        in_range = (actions >= 0).all(1) & (op < NUM_OPS) & (slot < self.slot.shape[2])
        in_range &= (blueprint < self.blueprint.shape[2]) & (blend < NUM_BLENDS)
        slot, blueprint, blend, op = (column.where(in_range, 0) for column in (slot, blueprint, blend, op))
        host = torch.arange(len(actions))
        irrelevant_unset = torch.where(op == Op.GERMINATE, True, (blueprint == 0) & (blend == 0))
        seed = self.blueprint[host, slot, blueprint] & self.blend[host, blend]
        seedable = torch.where(op == Op.GERMINATE, seed, True)
        return in_range & self.slot[host, op, slot] & seedable & irrelevant_unset

    def without(self, op: Op, hosts: Tensor) -> "ActionMasks":
        """The same masks, with `op` forbidden to `hosts [N]` (bool)."""
        slot = self.slot.clone()
        slot[:, op] &= ~hosts[:, None]
        return ActionMasks(slot.any(2), slot, self.blueprint, self.blend)


def _stages_allowing(op: Op) -> Tensor:
    """`[8]` bool: the stages from which the transition table lets `op` move a slot."""
    return torch.tensor([Mover.ACTION in TRANSITIONS.get((stage, OP_TARGETS[op]), Mover(0)) for stage in Stage])


_ALLOWING = {op: _stages_allowing(op) for op in OP_TARGETS}
_TIME_NEEDED = torch.tensor([EPOCHS_TO_DECIDE[blend] for blend in Blend])
_PROTECTED_STAGES = torch.tensor([Stage.BLENDING, Stage.HOLDING])


def action_masks(
    table: SlotTable, catalogue: Catalogue, budget: Tensor, epochs_left: Tensor | None = None
) -> ActionMasks:
    """The masks of all hosts; `budget [N]` is the most parameters that a host's seeds may add together.

    `epochs_left [N]` forbids seeds that could not be decided in time; without it there is always time.
    """
    num_hosts, num_slots = table.shape
    left = budget - table.added_params
    blueprint = catalogue.fits & (catalogue.params <= left[:, None, None])

    slot = torch.zeros((num_hosts, NUM_OPS, num_slots), dtype=torch.bool)
    slot[:, Op.WAIT, 0] = True
    blend = torch.ones((num_hosts, NUM_BLENDS), dtype=torch.bool)
    if epochs_left is not None:
        blend &= epochs_left[:, None] >= _TIME_NEEDED
    slot[:, Op.GERMINATE] = _ALLOWING[Op.GERMINATE][table.stage] & blueprint.any(2) & blend.any(1)[:, None]
    slot[:, Op.FOSSILIZE] = _ALLOWING[Op.FOSSILIZE][table.stage] & table.proven
    # A seed gets its chance: it is safe until it has been measured often enough.
    protected = torch.isin(table.stage, _PROTECTED_STAGES) & (table.measurements < MEASUREMENTS_BEFORE_CULL)
    slot[:, Op.CULL] = _ALLOWING[Op.CULL][table.stage] & ~protected

    return ActionMasks(slot.any(2), slot, blueprint, blend)
