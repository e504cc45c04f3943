"""Moving tensors to where the policy is."""

import torch
from torch import Tensor

from esper.simic.control.action_spec import Masks


def move(tensor: Tensor, device: torch.device | str) -> Tensor:
    """`tensor` on `device`, the same one if it is there; nothing waits for a copy towards a device."""
    # A copy to the CPU is waited for: until it is done, what was returned holds anything.
    return tensor.to(device, non_blocking=torch.device(device).type != "cpu")


def move_masks(masks: Masks, device: torch.device | str) -> dict[str, Tensor]:
    """`masks` on `device`."""
    return {name: move(mask, device) for name, mask in masks.items()}
