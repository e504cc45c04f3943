"""Configs by name: one for every task, one for any host, the pair of tasks, and a quick one for a first look."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from esper.leyline import InputError, unknown_name
from esper.simic.config.training import TrainingConfig, changed

_LONG: Mapping[str, Any] = {"world.batches_per_epoch": 100, "world.seed_lr_scale": 0.5}
"""Four times the training; the rates that are best for it (docs/growth.md): that of hosts is the tasks' own."""
_SMALL_HOST: Mapping[str, Any] = {"world.price": 0.03, "world.budget": 800}
"""Of a host of about 1,000 parameters: without a budget, three of its fifteen plantings alone cost 3 to 12 points."""
_PAIRED: Mapping[str, Any] = {
    "rounds": 34,
    "validate_every": 7,
    "validation_episodes": 32,
    "world.tasks": ("mnist1d", "mnist1d-shuffled"),
    "world.envs": 64,
    "world.workers": 2,
    "learner.lr": 2.5e-3,
    "learner.num_minibatches": 12,
    "learner.entropy_coef": 0.005,
    "learner.op_bias": (0.5, 1.5, 1.0, -3.0),
    "lessons.op_smoothing": 0.25,
    "lessons.detail_smoothing": 0.6,
    **_SMALL_HOST,
}
_TEXT: Mapping[str, Any] = {"world.envs": 8, "rounds": 30, "learner.num_minibatches": 4}
_IMAGES: Mapping[str, Any] = {**_TEXT, "world.executor": "loop"}
_TRAINING_TASKS = "training"
"""Stands for the collection of that name, which cannot be asked for without importing all tasks."""
_ANY_HOST: Mapping[str, Any] = {
    "rounds": 0,
    "validation_episodes": 2,
    "world.tasks": _TRAINING_TASKS,
    "world.envs": 8,
    "world.workers": 2,
    "world.executor": "native",
    "world.budget": (0.2, 20.0),
    "world.twins": False,
    "learner.architecture": "pointing",
    "lessons.teacher": "search",
    "lessons.search_episodes": 128,
    "lessons.search_final_seeds": 16,
    "lessons.rounds": 5,
    "lessons.passes": 30,
}
"""A policy for any host, distilled from searches on all training tasks."""
_PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "any-host": _ANY_HOST,
        "pair": _PAIRED,
        "pair-long": {**_PAIRED, **_LONG},
        "quick": {
            "rounds": 6,
            "validation_episodes": 8,
            "world.tasks": ("mnist1d",),
            "world.workers": 2,
            **_SMALL_HOST,
        },
        "mnist1d": _SMALL_HOST,
        "mnist1d-shuffled": _SMALL_HOST,
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
    from esper.tasks import task_names

    return tuple(dict.fromkeys((*_PRESETS, *task_names())))


def preset(name: str) -> TrainingConfig:
    """The config called `name`; tasks of a family, as `ucr:GunPoint`, have theirs by their own name."""
    settings = dict(_PRESETS.get(name, {}))
    if settings.get("world.tasks") == _TRAINING_TASKS:
        from esper.tasks import tasks_of

        settings["world.tasks"] = tasks_of(_TRAINING_TASKS)
    if "world.tasks" not in settings:
        from esper.tasks import find_task

        try:
            find_task(name)
        except InputError:
            raise unknown_name("preset", name, preset_names()) from None
        settings["world.tasks"] = (name,)
    return changed(TrainingConfig(), settings)
