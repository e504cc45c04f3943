"""Torch's random state where a network draws from: on the CPU, and on the devices that hold it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

RandomState = Mapping[torch.device, Tensor]
_CPU = torch.device("cpu")


def random_state(network: nn.Module) -> RandomState:
    """The present state, by device. Devices that hold nothing of `network` are left out, and not initialised."""
    accelerator = torch.accelerator.current_accelerator()
    kind = None if accelerator is None else accelerator.type
    places = {tensor.device for tensor in (*network.parameters(), *network.buffers())}
    devices = [device for device in places if device.type == kind]
    return {_CPU: torch.get_rng_state()} | {
        device: torch.get_device_module(device).get_rng_state(device) for device in devices
    }


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
