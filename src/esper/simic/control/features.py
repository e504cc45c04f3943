"""Observations: what a learned controller sees of N hosts, as one tensor `[N, D]`.

`observation_layout.py` says what stands where; here raw values are read off the slot table, the signals and the prices,
for all hosts at once. Below stands the dictionary view of a host with one seed, a readable twin for tests: 35 features
of a mapping with the keys of `leyline.TrainingSignals`, in which accuracies are in points, 0 to 100.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.kasmina import UNLIMITED, ActionMasks
from esper.leyline import (
    DEFAULT_EPISODE_LENGTH,
    EPOCHS_TO_DECIDE,
    NUM_BLENDS,
    NUM_OPS,
    POINTS,
    SEED_EXPLODING_GRADIENT,
    SEED_VANISHING_GRADIENT,
    Blend,
    Op,
)
from esper.simic.control.observation_layout import (
    HOST,
    Column,
    blocks,
    describe_observation,
    observation_layout,
    observation_width,
    scaled,
)
from esper.tasks import Task
from esper.tolaria import Situation
from esper.tolaria.governor import HISTORY

PRICE_RANGE = (0.01, 0.1)
"""Between these the price of a training episode is drawn, log-uniformly."""

__all__ = [
    "TaskConfig",
    "compute_action_mask",
    "describe_observation",
    "normalize_observation",
    "obs_to_base_features",
    "obs_to_base_features_tensor",
    "observation_layout",
    "observation_width",
    "price_feature",
    "safe",
    "signals_to_features",
]

SEED_LIFE = EPOCHS_TO_DECIDE[Blend.LINEAR]
"""Steps from germination to a seed that is kept, that of the decision included; instant ones need fewer."""
_HEALTH_DECADES = 2.0
"""A gradient so many powers of ten away from both thresholds is in full health."""


def signals_to_features(situation: Situation) -> Tensor:
    """The observation `[N, D]`, float32, finite, laid out as `observation_layout(S)` says."""
    values = (
        _host(situation),
        _slot(situation),
        _telemetry(situation),
        _measured(situation),
        _host_economy(situation),
        _slot_economy(situation),
    )
    filled = zip(blocks(situation.catalogue.fits.shape[1]), values, strict=True)
    return torch.cat([block.fill(raw).flatten(1) for block, raw in filled], 1)


def price_feature(price: Tensor) -> Tensor:
    """The price on a log scale where the ends of `PRICE_RANGE` are -1 and 1; very low for a price of 0."""
    low, high = (math.log(end) for end in PRICE_RANGE)
    smallest = torch.finfo(torch.float32).tiny
    return (2.0 * price.float().clamp(min=smallest).log() - (high + low)) / (high - low)


def _progress(situation: Situation) -> Tensor:
    return situation.signals.epoch / situation.episode_length


def _host(situation: Situation) -> dict[str, Tensor]:
    """Columns of the host block, each `[N]`."""
    signals = situation.signals
    histories = {f"loss_history_{age}": signals.loss_history[:, -1 - age] for age in range(HISTORY)}
    histories |= {f"accuracy_history_{age}": POINTS * signals.score_history[:, -1 - age] for age in range(HISTORY)}
    return histories | {
        "epoch": _progress(situation),
        "global_step": signals.epoch / DEFAULT_EPISODE_LENGTH,
        "train_loss": signals.train_loss,
        "val_loss": signals.val_loss,
        "loss_delta": signals.loss_delta,
        "train_accuracy": POINTS * signals.train_score,
        "val_accuracy": POINTS * situation.score,
        "accuracy_delta": POINTS * signals.score_delta,
        "plateau_epochs": signals.plateau_epochs,
        "best_val_accuracy": POINTS * signals.best_val_score,
        "best_val_loss": signals.best_val_loss,
        "host_grad_norm": signals.host_grad_norm,
        "host_learning_phase": _progress(situation),
    }


def _slot(situation: Situation) -> dict[str, Tensor]:
    """Columns of the slot block, each `[N, S]`."""
    table = situation.table
    kinds = F.one_hot(table.blueprint, situation.catalogue.fits.shape[1] + 1).unbind(-1)[1:]
    return {f"blueprint_{index}": kind for index, kind in enumerate(kinds, start=1)} | {
        "active": table.occupied,
        "stage": table.stage,
        "alpha": table.alpha,
        "counterfactual": POINTS * table.contribution,
    }


def _telemetry(situation: Situation) -> dict[str, Tensor]:
    """Columns of the telemetry block, each `[N, S]`; 0 where there is no seed."""
    table = situation.table
    norm = table.seed_grad_norm
    exploding = norm > SEED_EXPLODING_GRADIENT
    nearer = torch.minimum(norm / SEED_VANISHING_GRADIENT, SEED_EXPLODING_GRADIENT / norm)
    columns = {
        "gradient_norm": torch.where(exploding, SEED_EXPLODING_GRADIENT, norm),
        "gradient_health": nearer.log10() / _HEALTH_DECADES,
        "has_vanishing": norm < SEED_VANISHING_GRADIENT,
        "has_exploding": exploding,
        "accuracy": POINTS * situation.score[:, None].expand(table.shape),
        "accuracy_delta": POINTS * table.improvement,
        "epochs_in_stage": table.epochs_in_stage,
        "stage": table.stage,
        "alpha": table.alpha,
        "episode_progress": _progress(situation)[:, None].expand(table.shape),
    }
    return {name: torch.where(table.occupied, column.float(), 0.0) for name, column in columns.items()}


def _measured(situation: Situation) -> dict[str, Tensor]:
    """Columns of the availability block, each `[N, S]`."""
    table = situation.table
    return {
        "contribution": table.contribution.isfinite(),
        "improvement": table.improvement.isfinite(),
        "gradient": ~table.seed_grad_norm.isnan(),  # an infinite norm was measured, and shown as exploding
        "merit": _best_merit(situation) > 0,
    }


def _best_merit(situation: Situation) -> Tensor:
    """`[N, S]`: the largest merit of any kind in each slot; 0 where none is known."""
    if situation.merit is None:
        return torch.zeros(situation.table.shape)
    merit = situation.merit
    return merit.where(merit.isfinite(), 0.0).amax(2)


def _host_economy(situation: Situation) -> dict[str, Tensor]:
    """Host columns of the economy block, each `[N]`."""
    added, flops = situation.table.added_params.float(), situation.planted_flops.sum(1).float()
    budget = situation.budget.float()
    left = torch.where(situation.budget >= UNLIMITED, 1.0, (budget - added) / budget)
    history = situation.signals.score_history
    return {
        "params_added": added / situation.host_params,
        "budget_left": left,
        "price": price_feature(situation.price),
        "rent": POINTS * situation.rent(added, flops),
        "seed_lives_left": situation.steps_left / SEED_LIFE,
        "score_gain": POINTS * (history[:, -1] - history[:, -2]),
        "score_gain_3": POINTS * (history[:, -1] - history[:, -4]),
    }


def _slot_economy(situation: Situation) -> dict[str, Tensor]:
    """Slot columns of the economy block, each `[N, S]`."""
    table, catalogue = situation.table, situation.catalogue
    owed = POINTS * situation.rent(table.params.float(), situation.planted_flops.float())
    params = torch.where(catalogue.fits, catalogue.params.float(), torch.nan)
    best = _best_merit(situation)
    offers = POINTS * situation.rent(params[None], catalogue.flops[None].float())
    return {f"offer_{index}": offer for index, offer in enumerate(offers.unbind(-1), start=1)} | {
        "rent": owed,
        "net_contribution": POINTS * table.contribution - owed,
        "merit": best.log10(),  # minus infinity where none is known: the default
        "merit_lead": best / best.amax(1, keepdim=True),
    }


_STEPS_PER_EPOCH = 100
_BLUEPRINTS = 5
"""Places for blueprints in this view, whatever the catalogue: it shows the first five."""
_SCALARS = HOST.columns[:11]
_SEED = (
    Column("has_active_seed", "1 if there is a seed"),
    Column("seed_stage", "stage code", limit=7.0),
    Column("seed_epochs_in_stage", "epochs", limit=50.0),
    Column("seed_alpha", "blending weight"),
    Column("seed_improvement", "points", limit=10.0, signed=True),
    Column("available_slots", "free slots", limit=64.0, divisor=1.0),
    Column("seed_counterfactual", "points", limit=10.0, signed=True),
    *HOST.columns[21:],
)
_COLUMNS = (*HOST.columns[:21], *_SEED)
"""All but the blueprint, of which one column in five is 1."""


def safe(value: float | None, default: float, max_val: float) -> float:
    """`value` within ±`max_val`; `default` for None, NaN and infinities."""
    if value is None or not math.isfinite(value):
        return default
    return max(-max_val, min(max_val, value))


def _raw(obs: Mapping[str, Any], column: Column, max_epochs: int) -> float:
    """The value of a column before scaling, NaN where it is unknown."""
    per = {"epoch": max_epochs, "global_step": max_epochs * _STEPS_PER_EPOCH}.get(column.name, 1)
    value = obs.get(column.name)
    return math.nan if value is None else float(value) / per


def _raw_values(obs: Mapping[str, Any], max_epochs: int) -> list[float]:
    """One for each of `_COLUMNS`; of histories the last five, unknown ones in front."""

    def padded(history: Sequence[float]) -> list[float]:
        return [math.nan] * (HISTORY - len(history)) + [float(value) for value in history[-HISTORY:]]

    values = [_raw(obs, column, max_epochs) for column in _SCALARS]
    values += padded(obs["loss_history_5"]) + padded(obs["accuracy_history_5"])
    return values + [_raw(obs, column, max_epochs) for column in _SEED]


def obs_to_base_features(obs: Mapping[str, Any], max_epochs: int = 200) -> list[float]:
    """The 35 features as plain numbers, one at a time."""
    features = []
    for column, raw in zip(_COLUMNS, _raw_values(obs, max_epochs), strict=True):
        value = safe(raw, column.default, column.limit) / (column.divisor or column.limit)
        features.append(value if column.signed else max(0.0, value))
    return features + [float(obs.get("seed_blueprint_id", 0) == kind) for kind in range(1, _BLUEPRINTS + 1)]


def obs_to_base_features_tensor(
    obs: Mapping[str, Any], device: torch.device | str = "cpu", max_epochs: int = 200, out: Tensor | None = None
) -> Tensor:
    """The same as float32 `[35]` on `device`; given `out`, that very tensor, filled anew.

    For collecting rollouts; reading dictionaries and histories of any length does not suit torch.compile.
    """
    if out is None:
        out = torch.empty(len(_COLUMNS) + _BLUEPRINTS, device=device)
    raw = torch.tensor(_raw_values(obs, max_epochs), dtype=torch.float64)
    out[: len(_COLUMNS)] = scaled(_COLUMNS, raw).to(out)
    out[len(_COLUMNS) :] = 0.0
    blueprint = obs.get("seed_blueprint_id", 0)
    if 1 <= blueprint <= _BLUEPRINTS:
        out[len(_COLUMNS) + blueprint - 1] = 1.0
    return out


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """What the numbers of a task are measured against."""

    name: str
    max_epochs: int
    loss_scale: float
    """The loss of knowing nothing; losses are given in units of it."""

    @classmethod
    def of(cls, task: Task) -> Self:
        """The scales of a registered task."""
        return cls(task.name, task.episode_length, task.guess_loss)


def normalize_observation(obs: Mapping[str, Any], task_config: TaskConfig) -> dict[str, float]:
    """The scalars of `obs` by name, each in the range of its column, losses relative to the task's own scale."""
    columns = (*_SCALARS, *_SEED)
    units = {column.name: 10.0 / task_config.loss_scale for column in columns if column.name.endswith("_loss")}
    values = [_raw(obs, column, task_config.max_epochs) * units.get(column.name, 1.0) for column in columns]
    return dict(zip((c.name for c in columns), scaled(columns, torch.tensor(values)).tolist(), strict=True))


def compute_action_mask(masks: ActionMasks) -> Tensor:
    """`[N, S·B·L·O]` bool: every joint action in one flat mask, its heads in `HEAD_NAMES` order, the last fastest."""
    shape = (*masks.blueprint.shape, NUM_BLENDS, NUM_OPS)
    by_slot = masks.slot.transpose(1, 2)[:, :, None, None].expand(shape)
    seedable = masks.blueprint[:, :, :, None] & masks.blend[:, None, None]
    germinates = F.one_hot(torch.tensor(Op.GERMINATE), NUM_OPS).bool()
    # Heads that do not matter are 0; everything else would be the same action under another name.
    unset = torch.zeros(masks.blueprint.shape[2], NUM_BLENDS, dtype=torch.bool)
    unset[0, 0] = True
    return (by_slot & torch.where(germinates, seedable[..., None], unset[..., None])).flatten(1)
