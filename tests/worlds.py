"""A tiny task for tests that need whole episodes: learnable in seconds, no data to generate."""

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from esper.tasks import Loader, OptimizerSettings, Split, Splits, Task, find_task, task
from esper.tolaria import LoopExecutor, Population, StackedExecutor

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


def slots_of(task: Task) -> int:
    """How many slots the hosts of a task have."""
    return len(task.build_host().slot_sites)


def poison(population: Population, host: int) -> None:
    """Break one host's weights, as a bad step would."""
    executor: Any = population.executor
    with torch.no_grad():
        if isinstance(executor, LoopExecutor):
            next(executor.network(host).host.parameters()).fill_(torch.nan)
        elif isinstance(executor, StackedExecutor):
            executor._now.hosts.weights[host] = torch.nan
        else:
            executor._now[host].weights[:] = torch.nan


HOST_SETTINGS: dict[str, dict[str, Any]] = {
    "mlp": {"inputs": 12, "widths": (8, 6, 8), "classes": 3},
    "conv1d": {"channels": (4, 5, 6), "classes": 3},
    "conv2d": {"inputs": 1, "channels": (4, 5, 6), "classes": 3},
    "transformer": {"vocabulary": 3, "context": 6, "width": 8, "heads": 2},
}
_INPUT_SHAPES = {"mlp": (12,), "conv1d": (20,), "conv2d": (1, 8, 8)}


def host_task(host: str, **overrides: Any) -> Task:
    """A few random samples for any host of the zoo, with two small minibatches per epoch."""
    settings: dict[str, Any] = {
        "name": f"random-{host}",
        "load": _random_loader(host),
        "host": host,
        "host_settings": HOST_SETTINGS[host],
        "optimizer": OptimizerSettings("adamw", lr=1e-2, schedule="cosine", seed_lr_scale=0.5),
        "batch_size": 4,
        "batches_per_epoch": 2,
        "quality": "loss" if host == "transformer" else "accuracy",
    }
    return tiny_task(**(settings | overrides))


@cache
def _random_loader(host: str) -> Loader:
    def load() -> Splits:
        generator = torch.Generator().manual_seed(0)

        def split(num: int) -> Split:
            if host == "transformer":
                tokens = torch.randint(3, (num, 7), generator=generator)
                return Split(tokens[:, :-1], tokens[:, 1:])
            x = torch.randn(num, *_INPUT_SHAPES[host], generator=generator)
            return Split(x, torch.randint(3, (num,), generator=generator))

        return Splits(split(24), split(16), split(16))

    return load
