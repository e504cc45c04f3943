"""Train and eval mode of a network, module by module: kept, changed for a while, and put back."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import nn

Modes = Mapping[nn.Module, bool]
"""Of each module: whether it is in train mode."""


def modes_of(*networks: nn.Module) -> Modes:
    return {module: module.training for network in networks for module in network.modules()}


def set_modes(modes: Modes) -> None:
    """Set the flags alone, where `train` would pass a mode on to all children."""
    for module, training in modes.items():
        module.training = training


@contextmanager
def evaluating(*networks: nn.Module) -> Iterator[None]:
    """Eval mode; afterwards every module is in the mode it was in before, whatever happened in between."""
    before = modes_of(*networks)
    for network in networks:
        network.eval()
    try:
        yield
    finally:
        # By `train` first: some modules do more there than set the flag, such as splitting merged weights again.
        for module, training in before.items():
            if module.training != training:
                module.train(training)
        set_modes(before)
