"""Configs by name: one for every task, the pair that controllers are proven on, and a quick one for a first look."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from esper.leyline import InputError, unknown_name
from esper.simic.training.config import TrainingConfig
from esper.tolaria import find_task, task_names

PAIR = ("mnist1d", "mnist1d-shuffled")
_LONG: Mapping[str, Any] = {"batches_per_epoch": 100, "seed_lr_scale": 0.5}
"""Four times the training; the rates that are best for it (docs/growth.md): that of hosts is the tasks' own."""
_SMALL_HOST: Mapping[str, Any] = {"price": 0.03, "budget": 800}
"""Of a host of about 1,000 parameters: without a budget, three of its fifteen plantings alone cost 3 to 12 points."""
_PAIRED: Mapping[str, Any] = {
    "tasks": PAIR,
    "envs": 64,
    "rounds": 34,
    "workers": 2,
    "executor": "stacked",
    "validate_every": 7,
    "validation_episodes": 32,
    "lr": 2.5e-3,
    "num_minibatches": 12,
    "entropy_coef": 0.005,
    "op_bias": (0.5, 1.5, 1.0, -3.0),
    "lesson_smoothing": 0.25,
    "lesson_detail_smoothing": 0.6,
    **_SMALL_HOST,
}
_IMAGES: Mapping[str, Any] = {"envs": 8, "rounds": 30, "executor": "loop", "num_minibatches": 4}
_TEXT: Mapping[str, Any] = {"envs": 8, "rounds": 30, "num_minibatches": 4}
_PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "pair": _PAIRED,
        "pair-long": {**_PAIRED, **_LONG},
        "quick": {
            "tasks": ("mnist1d",),
            "envs": 32,
            "rounds": 6,
            "workers": 2,
            "executor": "stacked",
            "validation_episodes": 8,
            **_SMALL_HOST,
        },
        "mnist1d": {"tasks": ("mnist1d",), **_SMALL_HOST},
        "mnist1d-shuffled": {"tasks": ("mnist1d-shuffled",), **_SMALL_HOST},
        "cifar10": _IMAGES,
        "mnist": _IMAGES,
        "fashion-mnist": _IMAGES,
        "synthetic-images": _IMAGES,
        "text": _TEXT,
        "tinystories": _TEXT,
    }
)


def preset_names() -> tuple[str, ...]:
    """All presets: every task has one."""
    return tuple(dict.fromkeys((*_PRESETS, *task_names())))


def preset(name: str) -> TrainingConfig:
    """The config called `name`; tasks of a family, as `ucr:GunPoint`, have theirs by their own name."""
    return TrainingConfig(**_settings(name))


def preset_fields(name: str) -> tuple[str, ...]:
    """The fields that a preset decides; all others have their defaults."""
    return tuple(_settings(name))


def _settings(name: str) -> dict[str, Any]:
    settings = dict(_PRESETS.get(name, {}))
    if "tasks" not in settings:
        try:
            find_task(name)
        except InputError:
            raise unknown_name("preset", name, preset_names()) from None
        settings["tasks"] = (name,)
    return settings
