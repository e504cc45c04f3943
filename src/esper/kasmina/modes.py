"""Eval mode for the time of a measurement."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(*networks: nn.Module) -> Iterator[None]:
    """Eval mode; afterwards every module is in the mode it was in before, whatever happened in between."""
    modes = {module: module.training for network in networks for module in network.modules()}
    for network in networks:
        network.eval()
    try:
        yield
    finally:
        # By `train` first: some modules do more there than set the flag, such as splitting merged weights again.
        for module, mode in modes.items():
            if module.training != mode:
                module.train(mode)
        for module, mode in modes.items():
            module.training = mode
