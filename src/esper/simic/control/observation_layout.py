"""What stands where in an observation: the columns of `signals_to_features` by name, meaning, unit and bounds.

A column is given a raw value in its unit. Where that is NaN or infinite it is replaced by `default`; then it is
clamped to ±`limit` (0 to `limit` if it cannot be negative) and divided by `divisor`. So every feature is finite and
its bounds are known.

| block | columns | for |
|---|---|---|
| host | 23 | the host |
| slot | 4 + B per slot | what is in the slot |
| telemetry | 10 per slot | how the seed in it fares; all 0 without a seed |
| availability | 4 per slot | 1 where a value of the slot was measured, 0 where its default stands in |
| economy | 7, then 4 + B per slot | what things cost and what they bring |

B is the number of blueprints: the size of the largest catalogue of any family.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from esper.kasmina import num_blueprints
from esper.leyline import DEFAULT_EPISODE_LENGTH, SlotConfig, Stage
from esper.tolaria.governor import HISTORY

PRICE_LIMIT = 3.0
"""Largest price feature: 1 is the upper end of the range that training draws from, and 2 more are a factor of 10."""


@dataclass(frozen=True, slots=True)
class Column:
    """One feature."""

    name: str
    meaning: str
    limit: float = 1.0
    divisor: float | None = None
    """None: the limit itself, so that the feature ends at 1."""
    default: float = 0.0
    """Raw value where none was measured."""
    signed: bool = False

    @property
    def high(self) -> float:
        """The largest value of the feature."""
        return 1.0 if self.divisor is None else self.limit / self.divisor

    @property
    def low(self) -> float:
        """The smallest value of the feature."""
        return -self.high if self.signed else 0.0


@dataclass(frozen=True)
class Block:
    """Columns that stand together, either once per host or once per slot."""

    name: str
    columns: tuple[Column, ...]
    per_slot: bool = False

    def fill(self, raw: Mapping[str, Tensor]) -> Tensor:
        """The features `[..., C]` of raw values `[...]` by column name."""
        values = torch.stack([raw[column.name].float() for column in self.columns], -1)
        return scaled(self.columns, values)


@cache
def _scales(columns: tuple[Column, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = [
        (column.default, -column.limit if column.signed else 0.0, column.limit, column.divisor or column.limit)
        for column in columns
    ]
    with torch.inference_mode(False):
        defaults, lows, highs, divisors = torch.tensor(rows, device=device).unbind(1)
    return defaults, lows, highs, divisors


def scaled(columns: tuple[Column, ...], values: Tensor) -> Tensor:
    """Raw `values [..., C]` as features: finite and within the bounds of `columns`."""
    defaults, lows, highs, divisors = _scales(columns, values.device)
    return torch.where(values.isfinite(), values, defaults).clamp(lows, highs) / divisors


_STAGE = Column("stage", "stage code", limit=float(max(Stage)))

HOST = Block(
    "host",
    (
        Column("epoch", "share of the episode that has passed"),
        Column("global_step", f"epochs passed, in episodes of {DEFAULT_EPISODE_LENGTH}", limit=4.0, divisor=1.0),
        Column("train_loss", "loss; 10 if unknown", limit=10.0, default=10.0),
        Column("val_loss", "loss; 10 if unknown", limit=10.0, default=10.0),
        Column("loss_delta", "change of the validation loss", limit=5.0, signed=True),
        Column("train_accuracy", "points", limit=100.0),
        Column("val_accuracy", "points", limit=100.0),
        Column("accuracy_delta", "points gained in the last epoch", limit=50.0, signed=True),
        Column("plateau_epochs", "epochs without a gain", limit=20.0),
        Column("best_val_accuracy", "points", limit=100.0),
        Column("best_val_loss", "loss; 10 if unknown", limit=10.0, default=10.0),
        *(
            Column(f"loss_history_{age}", f"loss {age} epochs ago; 10 if unknown", limit=10.0, default=10.0)
            for age in reversed(range(HISTORY))
        ),
        *(
            Column(f"accuracy_history_{age}", f"points {age} epochs ago; 0 if unknown", limit=100.0)
            for age in reversed(range(HISTORY))
        ),
        Column("host_grad_norm", "gradient norm of the host", limit=10.0),
        Column("host_learning_phase", "share of the episode that has passed"),
    ),
)
_SLOT = (
    Column("active", "1 if the slot holds a seed"),
    _STAGE,
    Column("alpha", "blending weight in the epoch to come"),
    Column("counterfactual", "contribution in points", limit=10.0, signed=True),
)
_TELEMETRY = Block(
    "telemetry",
    (
        Column("gradient_norm", "gradient norm of the seed", limit=10.0),
        Column("gradient_health", "1 far from vanishing and exploding, 0 at either"),
        Column("has_vanishing", "1 if the gradient is too small to learn from"),
        Column("has_exploding", "1 if the gradient is too large"),
        Column("accuracy", "validation score of the network with the seed, points", limit=100.0),
        Column("accuracy_delta", "points since germination, host and seed together", limit=50.0, signed=True),
        Column("epochs_in_stage", "epochs; 1 is five", limit=25.0, divisor=5.0),
        _STAGE,
        Column("alpha", "blending weight in the epoch to come"),
        Column("episode_progress", "share of the episode that has passed"),
    ),
    per_slot=True,
)
_AVAILABILITY = Block(
    "availability",
    (
        Column("contribution", "1 if the contribution was measured"),
        Column("improvement", "1 if the score since germination is known"),
        Column("gradient", "1 if the gradient norm was measured"),
        Column("merit", "1 if the merit of anything that fits here was measured"),
    ),
    per_slot=True,
)
_HOST_ECONOMY = Block(
    "economy",
    (
        Column("params_added", "parameters of all seeds / host parameters", limit=10.0, divisor=1.0),
        Column("budget_left", "share of the parameter budget; 1 when unlimited"),
        Column(
            "price",
            "log scale: -1 and 1 are the ends of the range that training draws from",
            limit=PRICE_LIMIT,
            divisor=1.0,
            signed=True,
        ),
        Column("rent", "rent of all seeds if they were kept, points; 1 is ten", limit=50.0, divisor=10.0),
        Column("seed_lives_left", "steps left / steps from germination to a kept seed", limit=10.0, divisor=1.0),
        Column("score_gain", "points gained in the last epoch", limit=5.0, signed=True),
        Column("score_gain_3", "points gained over three epochs", limit=10.0, signed=True),
    ),
)
_SLOT_ECONOMY = (
    Column("rent", "rent of the seed at alpha 1, points; 1 is ten", limit=50.0, divisor=10.0),
    Column("net_contribution", "contribution minus that rent, points; 1 is ten", 50.0, 10.0, signed=True),
    Column("merit", "largest merit of any kind here, in powers of ten; 1 is a hundred", 4.0, 2.0, signed=True),
    Column("merit_lead", "that merit relative to the largest of any slot: 1 in the slot that has it"),
)


@cache
def blocks(blueprints: int) -> tuple[Block, ...]:
    """In the order in which they stand; one per slot lists all columns of the first slot, then those of the second."""
    kinds = range(1, blueprints + 1)
    held = [Column(f"blueprint_{kind}", f"1 for blueprint {kind}") for kind in kinds]
    meaning = "rent of blueprint {} if it were grown here, points; 1 is ten, 5 also if it does not fit"
    offers = [Column(f"offer_{kind}", meaning.format(kind), limit=50.0, divisor=10.0, default=50.0) for kind in kinds]
    return (
        HOST,
        Block("slot", (*_SLOT, *held), per_slot=True),
        _TELEMETRY,
        _AVAILABILITY,
        _HOST_ECONOMY,
        Block("economy", (*_SLOT_ECONOMY, *offers), per_slot=True),
    )


@dataclass(frozen=True, slots=True)
class PlacedColumn:
    """A column of an observation: which feature, and of which slot if of one."""

    block: str
    slot_id: str | None
    column: Column

    @property
    def name(self) -> str:
        """Unique in its observation: `host.epoch`, `r0c1.telemetry.alpha`."""
        return ".".join(part for part in (self.slot_id, self.block, self.column.name) if part)


def observation_layout(slots: SlotConfig | int) -> tuple[PlacedColumn, ...]:
    """Every column of an observation of a host with these slots (or so many), in order, for the present blueprints."""
    return _layout(SlotConfig.of_size(slots) if isinstance(slots, int) else slots, num_blueprints())


@cache
def _layout(config: SlotConfig, blueprints: int) -> tuple[PlacedColumn, ...]:
    return tuple(
        PlacedColumn(block.name, slot_id, column)
        for block in blocks(blueprints)
        for slot_id in (config.slot_ids if block.per_slot else (None,))
        for column in block.columns
    )


def observation_width(slots: SlotConfig | int) -> int:
    """The D of an observation `[N, D]` of a host with these slots (or so many)."""
    return len(observation_layout(slots))


def describe_observation(row: Tensor, slots: SlotConfig | int) -> dict[str, float]:
    """One observation `[D]` by column name, for people to read."""
    names = [placed.name for placed in observation_layout(slots)]
    return dict(zip(names, row.tolist(), strict=True))
