"""Observations of any host: one block for the host, one per slot, one per kind in each slot, as one row `[N, D]`.

Slots and kinds are described by what they are and cost, never by a number: a slot by its depth and sizes, a kind by
what it connects and mixes, its price and its merit. Sizes are relative to the host, so that one of 1,000 parameters and
one of 100,000 look alike. `Anatomy` says where the blocks of S slots and B kinds lie in a row; hosts of fewer slots are
padded to S. Every slot and every kind begins with a flag, 1 where it exists, and everything behind a flag of 0 is 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Self

import torch
from torch import Tensor

from esper.kasmina import Catalogue, Site, blueprints_of, num_blueprints
from esper.leyline import POINTS, InputError, Stage
from esper.simic.control.features import SEED_LIFE, price_feature
from esper.simic.control.observation_layout import PRICE_LIMIT, Block, Column
from esper.tolaria import Situation

_MIXES = {"none": 0.0, "neighbours": 0.5, "all": 1.0}
_STAGES = (Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED, Stage.CULLED, Stage.EMBARGOED)
"""Shown one by one; a seed that has just germinated is in none of them."""
_NATURE = (
    Column("connects", "1 if it connects an earlier tensor, 0 if it refines"),
    Column("reach", "share of the slots that it leads past"),
    Column("channels", "1 if it mixes channels or features"),
    Column("positions", "0, a half or 1: mixes no positions, neighbours, all"),
    Column("params", "parameters / host parameters", limit=4.0, divisor=1.0),
    Column("log_params", "the same in powers of ten", limit=3.0, signed=True, default=-3.0),
)
"""What is known of a kind in a slot before anything is measured."""
_HOST = Block(
    "host",
    (
        Column("progress", "share of the episode that has passed"),
        Column("lives_left", "steps left / steps from germination to a kept seed", limit=10.0, divisor=1.0),
        Column("score", "validation score"),
        Column("train_score", "training score"),
        Column("val_loss", "loss; 10 if unknown", limit=10.0, default=10.0),
        Column("score_gain", "points gained in the last epoch", limit=20.0, signed=True),
        Column("score_gain_3", "points gained over three epochs", limit=50.0, signed=True),
        Column("plateau", "epochs without a gain", limit=20.0),
        Column("price", "log scale: -1 and 1 end the range of training", PRICE_LIMIT, 1.0, signed=True),
        Column("budget", "budget left / host parameters; 4 when unlimited", limit=4.0, divisor=1.0),
        Column("params_added", "parameters of all seeds / host parameters", limit=4.0, divisor=1.0),
        Column("rent", "rent of all seeds if they were kept, points; 1 is ten", limit=50.0, divisor=10.0),
        Column("seeds", "seeds that are there", limit=8.0, divisor=1.0),
        Column("ordered_known", "1 if the input has positions whose neighbours could be compared"),
        Column("ordered", "correlation of neighbours in the input", signed=True),
        Column("passes_known", "1 if the number of passes over the training data is known"),
        Column("passes", "passes over the training data in the episode, in powers of ten", limit=3.0, divisor=1.0),
        Column("merit_known", "1 if the merit of anything was measured"),
        Column("merit", "largest merit of anything, in powers of ten; 1 is a hundred", 4.0, 2.0, signed=True),
    ),
)
_SLOT = Block(
    "slot",
    (
        Column("exists", "1 for a slot of this host"),
        Column("depth", "share of the slots in front of it"),
        Column("output", "1 for the last slot"),
        Column("width", "channels or features / those of the widest slot"),
        Column("extent", "positions / those of the slot with the most"),
        Column("mapped", "1 if it has positions"),
        Column("rectified", "1 if its output has no negative values, as behind a ReLU"),
        Column("seed_before", "1 / how many slots further up the next seed is; 0 without one"),
        Column("seed_behind", "1 / how many slots further down the next seed is; 0 without one"),
        Column("occupied", "1 if it holds a seed"),
        *(Column(stage.name.lower(), "1 in this stage") for stage in _STAGES),
        Column("alpha", "blending weight in the epoch to come"),
        Column("waited", "epochs in the stage; 1 is five", limit=25.0, divisor=5.0),
        Column("contribution_known", "1 if it was measured"),
        Column("contribution", "points; 1 is five", limit=50.0, divisor=5.0, signed=True),
        Column("net_contribution", "contribution minus rent, points; 1 is five", 50.0, 5.0, signed=True),
        Column("improvement", "points since germination, host and seed together; 1 is ten", 50.0, 10.0, signed=True),
        Column("parity_known", "1 if gradients of seed and host were measured"),
        Column("parity", "gradient norm of seed / host, in powers of ten", limit=3.0, signed=True),
        *(replace(column, name=f"seed_{column.name}") for column in _NATURE),
    ),
    per_slot=True,
)
_KIND = Block(
    "kind",
    (
        Column("fits", "1 for a kind that fits in this slot"),
        *_NATURE,
        Column("flops", "FLOPs / host FLOPs; 0 where they are not counted", limit=4.0, divisor=1.0),
        Column("rent", "points; 1 is ten", limit=50.0, divisor=10.0),
        Column("affordable", "1 if it fits the budget left"),
        Column("merit_known", "1 if its merit was measured"),
        Column("merit", "in powers of ten; 1 is a hundred", 4.0, 2.0, signed=True),
        Column("merit_lead", "merit / the largest of anything"),
    ),
    per_slot=True,
)
BLOCKS = (_HOST, _SLOT, _KIND)


@dataclass(frozen=True)
class Anatomy:
    """Where the blocks lie in the observation of hosts of at most S slots and B kinds."""

    slots: int
    kinds: int

    @classmethod
    def of_width(cls, width: int, kinds: int | None = None) -> Self:
        """The one whose rows are so wide."""
        kinds = num_blueprints() if kinds is None else kinds
        host, slot, kind = (len(block.columns) for block in BLOCKS)
        anatomy = cls((width - host) // (slot + kinds * kind), kinds)
        if anatomy.width != width or anatomy.slots < 1:
            raise InputError(f"no host has observations of {width} with {kinds} kinds")
        return anatomy

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Columns of all blocks of a host, its slots and its kinds."""
        host, slot, kind = (len(block.columns) for block in BLOCKS)
        return host, self.slots * slot, self.slots * self.kinds * kind

    @property
    def width(self) -> int:
        """The D of a row."""
        return sum(self.sizes)

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`rows [..., D]` as host `[..., F]`, slots `[..., S, F]` and kinds `[..., S, B, F]`."""
        host, slots, kinds = rows.split(self.sizes, -1)
        return host, slots.unflatten(-1, (self.slots, -1)), kinds.unflatten(-1, (self.slots, self.kinds, -1))

    def join(self, host: Tensor, slots: Tensor, kinds: Tensor) -> Tensor:
        """The inverse of `split`."""
        return torch.cat([host, slots.flatten(-2), kinds.flatten(-3)], -1)

    def present(self, rows: Tensor) -> Tensor:
        """`[..., D]` bool: the columns that tell of something that exists."""
        host, slots, kinds = self.split(rows)
        parts = torch.ones_like(host), slots[..., :1].expand_as(slots), kinds[..., :1].expand_as(kinds)
        return self.join(*parts) > 0

    def pad(self, rows: Tensor, kinds: int | None = None) -> Tensor:
        """Rows of hosts with fewer slots as rows of this anatomy."""
        smaller = Anatomy.of_width(rows.shape[-1], self.kinds if kinds is None else kinds)
        if smaller == self:
            return rows
        host, slots, offers = smaller.split(rows)
        missing, unknown = self.slots - smaller.slots, self.kinds - smaller.kinds
        if missing < 0 or unknown < 0:
            raise InputError(f"{smaller} does not fit into {self}")
        pad = torch.nn.functional.pad
        return self.join(host, pad(slots, (0, 0, 0, missing)), pad(offers, (0, 0, 0, unknown, 0, missing)))

    @cached_property
    def feature(self) -> Tensor:
        """`[D]`: which of the features, those of host, slot and kind one after the other, stands in each column."""
        host, slot, kind = (len(block.columns) for block in BLOCKS)
        parts = (torch.arange(size) for size in (host, slot, kind))
        firsts = (0, host, host + slot)
        counts = (1, self.slots, self.slots * self.kinds)
        return torch.cat([(part + first).repeat(n) for part, first, n in zip(parts, firsts, counts, strict=True)])

    @cached_property
    def flags(self) -> Tensor:
        """`[D]` bool: the columns that say whether a slot or a kind exists."""
        host, slot, _ = (len(block.columns) for block in BLOCKS)
        return torch.isin(self.feature, torch.tensor([host, host + slot]))


def num_features() -> int:
    """How many features there are, however many slots and kinds."""
    return sum(len(block.columns) for block in BLOCKS)


def observe_anatomy(situation: Situation) -> Tensor:
    """The observation `[N, D]`, float32 and finite, for the slots of these hosts and the present kinds."""
    nature = _nature(situation.sites, situation.catalogue, situation.host_params)
    anatomy = Anatomy(*situation.catalogue.fits.shape)
    host, slots, kinds = _host(situation), _slots(situation, nature), _kinds(situation, nature)
    parts = (block.fill(raw) for block, raw in zip(BLOCKS, (host, slots, kinds), strict=True))
    rows = anatomy.join(*parts)
    return torch.where(anatomy.present(rows), rows, 0.0)


class _ById:
    """A catalogue by identity: tensors cannot be compared, and a population keeps one catalogue."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue

    def __hash__(self) -> int:
        return id(self.catalogue)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.catalogue is self.catalogue


def _nature(sites: tuple[Site, ...], catalogue: Catalogue, host_params: int) -> dict[str, Tensor]:
    """Columns of what kinds are in each slot, `[S, B]`."""
    return _nature_of(sites, _ById(catalogue), host_params)


@lru_cache(maxsize=64)
def _nature_of(sites: tuple[Site, ...], of: _ById, host_params: int) -> dict[str, Tensor]:
    shape = of.catalogue.fits.shape
    names = ("connects", "reach", "channels", "positions")
    columns = {name: torch.zeros(shape) for name in names}
    for slot, site in enumerate(sites):
        for kind in blueprints_of(site.shape.family):
            place = slot, kind.id - 1
            columns["connects"][place] = kind.reads is not None
            columns["reach"][place] = _reach(sites, slot, kind.reads)
            columns["channels"][place] = kind.mixes.channels
            columns["positions"][place] = _MIXES[kind.mixed_positions]
    params = of.catalogue.params / host_params
    return columns | {"params": params, "log_params": params.log10()}


def _reach(sites: tuple[Site, ...], slot: int, reads: str | None) -> float:
    """The share of the slots between what a kind reads and where it is added."""
    source = sites[slot].source_of(reads)  # type: ignore[arg-type]  # None: it refines
    if source is None:
        return 0.0
    paths = [site.path for site in sites]
    before = paths.index(source.path) + (source.port == "output") if source.path in paths else 0
    return (slot + 1 - before) / len(sites)


def _host(situation: Situation) -> dict[str, Tensor]:
    """Columns of the host block, `[N]`."""
    signals, table = situation.signals, situation.table
    added, flops = table.added_params.float(), situation.planted_flops.sum(1).float()
    history, best = signals.score_history, _merit(situation).amax((1, 2))
    ordered = torch.full_like(situation.price, situation.input_correlation)
    passes = torch.full_like(situation.price, situation.passes)
    return {
        "progress": signals.epoch / situation.episode_length,
        "lives_left": situation.steps_left / SEED_LIFE,
        "score": situation.score,
        "train_score": signals.train_score,
        "val_loss": signals.val_loss,
        "score_gain": POINTS * (history[:, -1] - history[:, -2]),
        "score_gain_3": POINTS * (history[:, -1] - history[:, -4]),
        "plateau": signals.plateau_epochs,
        "price": price_feature(situation.price),
        "budget": (situation.budget - table.added_params) / situation.host_params,
        "params_added": added / situation.host_params,
        "rent": POINTS * situation.rent(added, flops),
        "seeds": table.occupied.sum(1),
        "ordered_known": ordered.isfinite(),
        "ordered": ordered,
        "passes_known": passes.isfinite(),
        "passes": passes.log10(),
        "merit_known": best > 0,
        "merit": best.log10(),
    }


def _merit(situation: Situation) -> Tensor:
    """`[N, S, B]`: merit, 0 where none is known."""
    if situation.merit is None:
        return torch.zeros(len(situation.price), *situation.catalogue.fits.shape)
    return situation.merit.where(situation.merit.isfinite(), 0.0)


def _slots(situation: Situation, nature: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Columns of the slot block, `[N, S]`."""
    table, shapes = situation.table, [site.shape for site in situation.sites]
    slots = table.shape[1]
    widths = torch.tensor([float(shape.width) for shape in shapes])
    extents = torch.tensor([float(shape.positions) for shape in shapes])
    static = {
        "exists": torch.ones(slots),
        "depth": torch.arange(slots) / max(1, slots - 1),
        "output": torch.arange(slots) == slots - 1,
        "width": widths / widths.max(),
        "extent": extents / extents.max(),
        "mapped": extents > 1,
        "rectified": torch.tensor([site.rectified for site in situation.sites]),
    }
    chosen, places = (table.blueprint - 1).clamp(min=0), torch.arange(slots)
    seeds = {f"seed_{name}": column[places, chosen] for name, column in nature.items()}
    owed = POINTS * situation.rent(table.params.float(), situation.planted_flops.float())
    parity = (table.seed_grad_norm / situation.signals.host_grad_norm[:, None]).log10()
    contribution = POINTS * table.contribution
    measured = {
        **{stage.name.lower(): table.stage == stage for stage in _STAGES},
        "alpha": table.alpha,
        "waited": table.epochs_in_stage,
        "contribution_known": contribution.isfinite(),
        "contribution": contribution,
        "net_contribution": contribution - owed,
        "improvement": POINTS * table.improvement,
        "parity_known": parity.isfinite(),
        "parity": parity,
        **seeds,
    }
    # Of an empty slot there is nothing to tell but how long it rests.
    resting = ("culled", "embargoed", "waited")
    told = {
        name: column if name in resting else torch.where(table.occupied, column.float(), 0.0)
        for name, column in measured.items()
    }
    return {name: column.float().expand(table.shape) for name, column in static.items()} | {
        "occupied": table.occupied,
        "seed_before": _nearness(table.occupied),
        "seed_behind": _nearness(table.occupied.flip(1)).flip(1),
        **told,
    }


def _nearness(occupied: Tensor) -> Tensor:
    """`[N, S]`: 1 / how many slots further up the next one of `occupied [N, S]` is; 0 without one."""
    places = torch.arange(occupied.shape[1])
    apart = places[:, None] - places
    return torch.where(occupied.unsqueeze(1) & (apart > 0), 1 / apart, 0.0).amax(2)


def _kinds(situation: Situation, nature: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Columns of the kind block, `[N, S, B]`."""
    catalogue, merit = situation.catalogue, _merit(situation)
    counted = situation.host_flops > 1
    static = {**nature, "fits": catalogue.fits, "flops": catalogue.flops * counted / situation.host_flops}
    return {name: column.float().expand(merit.shape) for name, column in static.items()} | {
        "rent": POINTS * situation.rent(catalogue.params[None].float(), catalogue.flops[None].float()),
        "affordable": situation.masks.blueprint,
        "merit_known": merit > 0,
        "merit": merit.log10(),
        "merit_lead": merit / merit.amax((1, 2), keepdim=True).clamp(min=torch.finfo(merit.dtype).tiny),
    }
