"""Eval mode and random numbers for the time of a measurement, put back afterwards."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Modes = Mapping[nn.Module, bool]
"""Of each module: whether it is in train mode."""
RandomState = Mapping[torch.device, Tensor]
_CPU = torch.device("cpu")


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


def random_state(network: nn.Module) -> RandomState:
    """The present state, by device. Devices that hold nothing of `network` are left out, and not initialised."""
    accelerator = torch.accelerator.current_accelerator()
    kind = None if accelerator is None else accelerator.type
    places = {tensor.device for tensor in (*network.parameters(), *network.buffers())}
    states = {place: torch.get_device_module(place).get_rng_state(place) for place in places if place.type == kind}
    return {_CPU: torch.get_rng_state()} | states


def _set_random_state(state: RandomState) -> None:
    for device, numbers in state.items():
        if device == _CPU:
            torch.set_rng_state(numbers)
        else:
            torch.get_device_module(device).set_rng_state(numbers, device)


@contextmanager
def keeping_random_state(network: nn.Module, start: RandomState | None = None) -> Iterator[None]:
    """Afterwards the random state is what it was, whatever was drawn inside; inside it begins as `start`, if given."""
    before = random_state(network)
    try:
        if start is not None:
            _set_random_state(start)
        yield
    finally:
        _set_random_state(before)
