"""A tiny task for tests that need whole episodes: learnable in seconds, no data to generate."""

from dataclasses import replace
from typing import Any

import torch

from esper.tolaria import OptimizerSettings, Split, Splits, Task, find_task, task

TINY = "tiny-blobs"


def _split(num: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (num,), generator=generator)
    centres = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    return Split(centres[y] + 0.8 * torch.randn(num, 6, generator=generator), y)


@task(
    TINY,
    "three blobs in six dimensions",
    host="mlp",
    classes=3,
    optimizer=OptimizerSettings("adamw", lr=1e-2),
    host_settings={"inputs": 6, "widths": (4, 4, 4), "classes": 3},
    batches_per_epoch=4,
)
def load_blobs() -> Splits:
    return Splits(_split(128, 1), _split(64, 2), _split(64, 3))


def tiny_task(**overrides: Any) -> Task:
    return replace(find_task(TINY), **overrides)
