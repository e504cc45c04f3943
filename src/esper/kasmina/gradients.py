"""Gradient clipping: units such as a host and its seeds, each by its own norm."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_

from esper.kasmina.torch_private import scale_tensors, tensor_norms

_EPS = 1e-6
"""What torch adds to a norm before it divides by it, so that 0 can be clipped too."""


def clip_factors(norms: Tensor, max_norm: float) -> Tensor:
    """What gradients with these norms have to be multiplied by to have at most `max_norm`; above 1 for short ones."""
    return max_norm / (norms + _EPS)


@torch.no_grad()
def clip_gradients(units: Iterable[Sequence[Parameter]], max_norm: float) -> Tensor:
    """Clip each unit's gradients together to `max_norm`, in place.

    Returns the norms before, one per unit, on the device of the first; 0 for a unit without gradients.
    """
    norms = [_clip(unit, max_norm) for unit in units]
    return torch.stack([norm.to(norms[0].device) for norm in norms])


def _clip(unit: Sequence[Parameter], max_norm: float) -> Tensor:
    gradients = [parameter.grad for parameter in unit if parameter.grad is not None]
    if not gradients:
        return torch.zeros(())
    device = gradients[0].device
    if any(gradient.device != device for gradient in gradients):
        return clip_grad_norm_(unit, max_norm)
    # The same on one device, where sorting gradients by device would take a tenth of a small host's step.
    norm: Tensor = torch.linalg.vector_norm(torch.stack(tensor_norms(gradients)))
    factor = clip_factors(norm, max_norm)
    # Looking at the factor saves time on the CPU, and would make it wait for any other device.
    if device.type != "cpu" or not bool(factor >= 1):
        scale_tensors(gradients, factor.clamp(max=1))
    return norm
