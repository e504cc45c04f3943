"""The dictionary view of a host with one seed: 35 readable features, a twin of the table features for tests.

Observations are mappings with the keys of `leyline.TrainingSignals`; accuracies are in points, 0 to 100.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.kasmina import ActionMasks
from esper.leyline import NUM_BLENDS, NUM_OPS, Op
from esper.simic.control.observation_layout import HOST, Column, scaled
from esper.tasks import Task
from esper.tolaria.signals import HISTORY

_STEPS_PER_EPOCH = 100
_BLUEPRINTS = 5
"""Places for blueprints in this view, whatever the catalogue: it shows the first five."""
_SCALARS = HOST.columns[:11]
_HISTORIES = {"loss_history_5": HOST.columns[11:16], "accuracy_history_5": HOST.columns[16:21]}
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
_ONE_HOT_START = len(HOST.columns) - 2 + len(_SEED)
NUM_BASE_FEATURES = _ONE_HOT_START + _BLUEPRINTS


def safe(value: float | None, default: float, max_val: float) -> float:
    """`value` within ±`max_val`; `default` for None, NaN and infinities."""
    if value is None or not math.isfinite(value):
        return default
    return max(-max_val, min(max_val, value))


def _raw(obs: Mapping[str, Any], column: Column, max_epochs: int) -> float | None:
    per = {"epoch": max_epochs, "global_step": max_epochs * _STEPS_PER_EPOCH}.get(column.name, 1)
    value = obs.get(column.name)
    return None if value is None else float(value) / per


def _padded(history: Sequence[float]) -> list[float]:
    """The last five values, unknown ones in front."""
    return [math.nan] * (HISTORY - len(history)) + [float(value) for value in history[-HISTORY:]]


def obs_to_base_features(obs: Mapping[str, Any], max_epochs: int = 200) -> list[float]:
    """The 35 features as plain numbers, one at a time."""

    def feature(column: Column, raw: float | None) -> float:
        value = safe(raw, column.default, column.limit) / (column.divisor or column.limit)
        return value if column.signed else max(0.0, value)

    features = [feature(column, _raw(obs, column, max_epochs)) for column in _SCALARS]
    for key, columns in _HISTORIES.items():
        features += [feature(column, value) for column, value in zip(columns, _padded(obs[key]), strict=True)]
    features += [feature(column, _raw(obs, column, max_epochs)) for column in _SEED]
    return features + [float(obs.get("seed_blueprint_id", 0) == kind) for kind in range(1, _BLUEPRINTS + 1)]


def obs_to_base_features_tensor(
    obs: Mapping[str, Any], device: torch.device | str = "cpu", max_epochs: int = 200, out: Tensor | None = None
) -> Tensor:
    """The same as float32 `[35]` on `device`; given `out`, that very tensor, filled anew.

    For collecting rollouts; reading dictionaries and histories of any length does not suit torch.compile.
    """
    if out is None:
        out = torch.empty(NUM_BASE_FEATURES, device=device)
    nothing = math.nan
    raw: list[float] = [nothing if (v := _raw(obs, column, max_epochs)) is None else v for column in _SCALARS]
    for key in _HISTORIES:
        raw += _padded(obs[key])
    raw += [nothing if (v := _raw(obs, column, max_epochs)) is None else v for column in _SEED]
    columns = (*_SCALARS, *(column for group in _HISTORIES.values() for column in group), *_SEED)
    out[:_ONE_HOT_START] = scaled(columns, torch.tensor(raw, dtype=torch.float64)).to(out)
    out[_ONE_HOT_START:] = 0.0
    blueprint = obs.get("seed_blueprint_id", 0)
    if 1 <= blueprint <= _BLUEPRINTS:
        out[_ONE_HOT_START + blueprint - 1] = 1.0
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
    raw = {column.name: _raw(obs, column, task_config.max_epochs) for column in columns}
    values = [math.nan if value is None else value * units.get(name, 1.0) for name, value in raw.items()]
    return dict(zip(raw, scaled(columns, torch.tensor(values)).tolist(), strict=True))


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
