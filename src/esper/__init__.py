"""Esper grows neural networks while they train."""

from typing import TYPE_CHECKING, Any

import gymnasium

if TYPE_CHECKING:
    from esper.api import Budget, Decision, Grower, TrainingConfig, evaluate, make_env, train

__version__ = "0.1.0"
__all__ = ["Budget", "Decision", "Grower", "TrainingConfig", "__version__", "evaluate", "make_env", "train"]

# Names, not classes: torch is imported when an environment is made.
gymnasium.register(
    "esper/Growth-v0",
    entry_point="esper.api.gym:GrowthGymEnv",
    vector_entry_point="esper.api.gym:GrowthVectorEnv",
)


def __getattr__(name: str) -> Any:
    """Import what people use at its first use, so that `esper --help` need not wait for torch."""
    if name in __all__:
        import esper.api

        return getattr(esper.api, name)
    raise AttributeError(f"module 'esper' has no attribute {name!r}")
