"""The state of all slots of all hosts as tensors, and which actions are legal in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, Self, get_type_hints

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.kasmina.blueprints.registry import blueprints_of, num_blueprints
from esper.kasmina.sites import SiteShape
from esper.leyline import (
    EPOCHS_TO_DECIDE,
    NO_BLUEPRINT,
    NUM_BLENDS,
    NUM_OPS,
    TRANSITIONS,
    Blend,
    InputError,
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
NOT_MEASURED = float("nan")
_COUNTS = ("epochs_in_stage", "blend_epoch", "pauses", "holds", "measurements", "params")
_MOST = 2**53
"""More than any count comes to."""
_OCCUPIED_CODES = torch.tensor([Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED])
"""Stages in which a slot holds a seed."""
_TIME_NEEDED = torch.tensor([EPOCHS_TO_DECIDE[blend] for blend in Blend])
_PROTECTED_CODES = torch.tensor([Stage.BLENDING, Stage.HOLDING])
_ALLOWING = {
    op: torch.tensor([Mover.ACTION in TRANSITIONS.get((stage, target), Mover(0)) for stage in Stage])
    for op, target in OP_TARGETS.items()
}
"""For each op, `[8]` bool: the stages from which the transition table lets it move a slot."""


@dataclass(slots=True)
class SlotTable:
    """Struct of arrays over N hosts and S slots; every field is `[N, S]`. NaN means not measured.

    Columns are annotated with what they hold for an empty slot; the type of that is the type of the column.
    """

    stage: Annotated[Tensor, Stage.DORMANT.value]
    """Stage codes."""
    alpha: Annotated[Tensor, 0.0]
    """Blending weight in the epoch to come."""
    blueprint: Annotated[Tensor, NO_BLUEPRINT]
    """Blueprint ids from 1 on; 0 where the slot is empty."""
    blend: Annotated[Tensor, 0]
    """Blend codes of the seeds."""
    epochs_in_stage: Annotated[Tensor, 0]
    """Epochs finished since the stage was entered."""
    blend_epoch: Annotated[Tensor, 0]
    """Which epoch of the blending schedule sets alpha, 1 to 3; 0 before blending."""
    pauses: Annotated[Tensor, 0]
    """How often a gated blend has stood still."""
    holds: Annotated[Tensor, 0]
    """How often alpha has held because the next one would have cost too much."""
    healthy: Annotated[Tensor, True]
    """Whether every epoch in which the seed had to learn had a finite loss and a seed gradient."""
    measurements: Annotated[Tensor, 0]
    """Counterfactuals taken since alpha rose above 0."""
    proven: Annotated[Tensor, False]
    """Whether the seed has been measured at alpha 1."""
    contribution: Annotated[Tensor, NOT_MEASURED]
    """Validation score with the seed minus without it, in the last epoch."""
    score_at_germination: Annotated[Tensor, NOT_MEASURED]
    """Validation score of the host when the seed was germinated."""
    improvement: Annotated[Tensor, NOT_MEASURED]
    """Validation score in the last epoch minus that at germination: seed and host together."""
    seed_grad_norm: Annotated[Tensor, NOT_MEASURED]
    """Gradient norm of the seed in the last epoch."""
    params: Annotated[Tensor, 0]
    """Parameters that the seed adds."""

    @classmethod
    def empty(cls, num_hosts: int, num_slots: int) -> Self:
        return cls(**{name: torch.full((num_hosts, num_slots), value) for name, value in _DORMANT.items()})

    def padded(self, num_slots: int) -> Self:
        """The same table with empty slots behind the others, `num_slots` in all."""
        missing = num_slots - self.shape[1]
        return type(self)(
            **{name: F.pad(column, (0, missing), value=_DORMANT[name]) for name, column in self.columns().items()}
        )

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any], num_slots: int) -> Self:
        """The table of one host from its saved columns; anything that no table could hold is refused by name."""
        if not isinstance(columns, Mapping) or set(columns) != set(_DORMANT):
            given = ", ".join(map(str, columns)) if isinstance(columns, Mapping) else f"a {type(columns).__name__}"
            raise InputError(f"a slot table has the columns {', '.join(_DORMANT)}; these are {given}")
        expected = cls.empty(1, num_slots).columns()
        for name, empty in expected.items():
            if not isinstance(columns[name], Tensor) or _form(columns[name]) != _form(empty):
                raise InputError(f"column {name!r} of the slot table must be {empty.dtype} of shape {[1, num_slots]}")
        table = cls(**{name: columns[name].clone() for name in expected})
        table._check_values()
        return table

    def _check_values(self) -> None:
        limits = {"stage": len(Stage) - 1, "alpha": 1, "blueprint": num_blueprints(), "blend": NUM_BLENDS - 1}
        limits |= dict.fromkeys(_COUNTS, _MOST)
        for name, most in limits.items():
            column = getattr(self, name)
            if not ((column >= 0) & (column <= most)).all():
                raise InputError(
                    f"column {name!r} of the slot table must be 0 to {most}; got {column.flatten().tolist()}"
                )
        if not torch.equal(self.occupied, self.blueprint != NO_BLUEPRINT):
            raise InputError("the slot table names blueprints for empty slots, or none for occupied ones")

    @property
    def shape(self) -> torch.Size:
        return self.stage.shape

    @property
    def occupied(self) -> Tensor:
        """`[N, S]` bool: the slot holds a seed."""
        return torch.isin(self.stage, _OCCUPIED_CODES)

    @property
    def on_trial(self) -> Tensor:
        """`[N, S]` bool: the slot holds a seed that is not kept for good."""
        return self.occupied & (self.stage != Stage.FOSSILIZED)

    @property
    def isolated(self) -> Tensor:
        """`[N, S]` bool: the slot holds a seed at alpha 0, which learns without touching its host."""
        return self.occupied & (self.alpha == 0)

    @property
    def blended(self) -> Tensor:
        """`[N, S]` bool: the slot holds a seed that takes part in the host's output."""
        return self.occupied & (self.alpha > 0)

    @property
    def must_learn(self) -> Tensor:
        """`[N, S]` bool: seeds that go on only with a gradient: in TRAINING, and instant ones in their first epoch."""
        return (self.stage == Stage.TRAINING) | ((self.stage == Stage.GERMINATED) & self.blended)

    @property
    def added_params(self) -> Tensor:
        """`[N]`: parameters that all seeds of a host add."""
        return self.params.sum(1)

    def clone(self) -> Self:
        return type(self)(**{name: column.clone() for name, column in self.columns().items()})

    def select(self, hosts: slice | Tensor) -> Self:
        return type(self)(**{name: column[hosts] for name, column in self.columns().items()})

    def where(self, hosts: Tensor, other: Self) -> Self:
        """This table for `hosts [N]` (bool), `other` for the rest."""
        pairs = zip(self.columns().items(), other.columns().values(), strict=True)
        return type(self)(**{name: torch.where(hosts[:, None], mine, theirs) for (name, mine), theirs in pairs})

    def columns(self) -> dict[str, Tensor]:
        return {spec.name: getattr(self, spec.name) for spec in fields(self)}

    def clear(self, where: Tensor) -> None:
        """Forget the seeds in the slots `where [N, S]`; their stage and its age stay."""
        for name, value in _DORMANT.items():
            if name not in ("stage", "epochs_in_stage"):
                getattr(self, name)[where] = value

    def equals(self, other: Self) -> bool:
        """Whether both tables hold the same values, unmeasured ones included."""
        pairs = zip(self.columns().values(), other.columns().values(), strict=True)
        return all(torch.equal(a.nan_to_num(1e30), b.nan_to_num(1e30)) for a, b in pairs)


_DORMANT: dict[str, Any] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(SlotTable, include_extras=True).items()
}


def _form(column: Tensor) -> tuple[torch.Size, torch.dtype, torch.layout]:
    return column.shape, column.dtype, column.layout


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
        flops = self.flops[torch.arange(table.shape[1]), chosen]
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
    protected = torch.isin(table.stage, _PROTECTED_CODES) & (table.measurements < MEASUREMENTS_BEFORE_CULL)
    slot[:, Op.CULL] = _ALLOWING[Op.CULL][table.stage] & ~protected

    return ActionMasks(slot.any(2), slot, blueprint, blend)
