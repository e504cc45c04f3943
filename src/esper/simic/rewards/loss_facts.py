"""Facts about the losses of tasks that are known by name, for the *loss* family."""

from collections.abc import Mapping
from types import MappingProxyType

from esper.leyline import InputError, unknown_name
from esper.simic.config.reward import LossConfig
from esper.tasks import find_task


def _facts(task: str, best_loss: float, typical_delta: float) -> LossConfig:
    """What cannot be known of a task but by training on it, with the loss of guessing that the task itself knows."""
    return LossConfig.of_classes(find_task(task).classes, best_loss, typical_delta)


LOSS_CONFIGS: Mapping[str, LossConfig] = MappingProxyType(
    {
        "cifar10": _facts("cifar10", best_loss=0.3, typical_delta=0.1),
        "tinystories": _facts("tinystories", best_loss=1.5, typical_delta=0.1),
    }
)
"""The tasks that need no facts given."""


def loss_config(task: str, facts: LossConfig | None = None) -> LossConfig:
    """`facts` if given, else those known of `task`."""
    if facts is not None:
        return facts
    if task not in LOSS_CONFIGS:
        raise InputError(f"{unknown_name('task for the loss reward', task, LOSS_CONFIGS)}, or give its facts")
    return LOSS_CONFIGS[task]
