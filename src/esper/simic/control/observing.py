"""What each kind of network is shown of a host."""

from collections.abc import Callable

from torch import Tensor

from esper.kasmina import num_blueprints
from esper.simic.config.training import Architecture
from esper.simic.control.anatomy import Anatomy, observe_anatomy
from esper.simic.control.features import signals_to_features
from esper.simic.control.observation_layout import observation_width
from esper.tolaria import Situation


def observer(architecture: Architecture) -> Callable[[Situation], Tensor]:
    """From what a controller may know to the observations `[N, D]` of its network."""
    return observe_anatomy if architecture == "pointing" else signals_to_features


def state_dim(architecture: Architecture, num_slots: int) -> int:
    """The D of its observations of hosts with so many slots."""
    return Anatomy(num_slots, num_blueprints()).width if architecture == "pointing" else observation_width(num_slots)
