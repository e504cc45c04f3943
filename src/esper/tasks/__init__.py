"""Tasks: what hosts are trained on, and where its data comes from. A new task is one decorated loader in a file here.

This is the only door: others import from `esper.tasks`, never from the files behind it.
"""

import esper.tasks.images
import esper.tasks.mnist1d
import esper.tasks.text
import esper.tasks.ucr  # noqa: F401  # importing registers
from esper.tasks.collections import HELD_OUT_TASKS, TRAINING_TASKS, VALIDATION_TASKS, expand_collections, tasks_of
from esper.tasks.download import fetch, is_published
from esper.tasks.files import SETS, data_folder, find_set
from esper.tasks.registry import (
    HostSettings,
    Loader,
    OptimizerSettings,
    RateSchedule,
    Split,
    Splits,
    Task,
    find_task,
    task,
    task_families,
    task_family,
    task_names,
)
from esper.tasks.sharing import SharedData

__all__ = [
    "HELD_OUT_TASKS",
    "SETS",
    "TRAINING_TASKS",
    "VALIDATION_TASKS",
    "HostSettings",
    "Loader",
    "OptimizerSettings",
    "RateSchedule",
    "SharedData",
    "Split",
    "Splits",
    "Task",
    "data_folder",
    "expand_collections",
    "fetch",
    "find_set",
    "find_task",
    "is_published",
    "task",
    "task_families",
    "task_family",
    "task_names",
    "tasks_of",
]
