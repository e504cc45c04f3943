"""Tasks: what hosts are trained on. A new one is one decorated loader in one of these files."""

import esper.tolaria.tasks.digits
import esper.tolaria.tasks.images
import esper.tolaria.tasks.mnist1d
import esper.tolaria.tasks.text
import esper.tolaria.tasks.tinystories
import esper.tolaria.tasks.ucr  # noqa: F401  # importing registers
from esper.tolaria.tasks.cache import data_folder
from esper.tolaria.tasks.registry import (
    OptimizerSettings,
    Quality,
    Split,
    Splits,
    Task,
    TaskFamily,
    find_task,
    task,
    task_families,
    task_family,
    task_names,
)

__all__ = [
    "OptimizerSettings",
    "Quality",
    "Split",
    "Splits",
    "Task",
    "TaskFamily",
    "data_folder",
    "find_task",
    "task",
    "task_families",
    "task_family",
    "task_names",
]
