"""Api: what people import."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper.api.environment import make_env
    from esper.api.growing import Budget, Decision, Grower
    from esper.api.statistics import Estimate
    from esper.api.training import Evaluation, evaluate, find_controller, train
    from esper.simic.training import TrainingConfig

__all__ = [
    "Budget",
    "Decision",
    "Estimate",
    "Evaluation",
    "Grower",
    "TrainingConfig",
    "evaluate",
    "find_controller",
    "make_env",
    "train",
]

_HOMES = {
    "make_env": "esper.api.environment",
    **dict.fromkeys(("Budget", "Decision", "Grower"), "esper.api.growing"),
    "Estimate": "esper.api.statistics",
    **dict.fromkeys(("Evaluation", "evaluate", "find_controller", "train"), "esper.api.training"),
    "TrainingConfig": "esper.simic.training",
}


def __getattr__(name: str) -> Any:
    """Import what is used at its first use: who grows a model need not wait for what trains a controller."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'esper.api' has no attribute {name!r}")
