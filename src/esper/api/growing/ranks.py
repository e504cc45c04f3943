"""Several processes that train one model: all measure the same, decide the same and keep their seeds equal.

Without `torch.distributed`, or with one process, everything here does nothing.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from esper.kasmina import GraftedModel


def several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def mean_over_ranks(values: Tensor, device: torch.device) -> Tensor:
    """The mean of `values` over all processes; NaN where any has NaN."""
    if not several():
        return values
    moved = values.to(device, copy=True)
    dist.all_reduce(moved)
    return (moved / dist.get_world_size()).to(values.device)


def of_first_rank(values: Tensor, device: torch.device) -> Tensor:
    if not several():
        return values
    moved = values.to(device, copy=True)
    dist.broadcast(moved, 0)
    return moved.to(values.device)


def anywhere(flag: bool, device: torch.device) -> bool:
    return bool(mean_over_ranks(torch.tensor([float(flag)]), device) > 0)


def tend_seeds(grafted: GraftedModel) -> None:
    """Average the gradients of seeds over all processes, as `DistributedDataParallel` does for the host.

    That wrapper knows only the parameters that were there when it was made, and expects to see all of them
    again; it is told to leave seeds alone. Averaging what is already an average changes nothing, so gradients
    that accumulate over several backward passes come out right.
    """
    if not several():
        return
    names = [f"slots.{name}" for name, _ in grafted.slots.named_parameters()]
    grafted._ddp_params_and_buffers_to_ignore = names  # type: ignore[assignment]  # where the wrapper looks for them
    for parameter in grafted.slots.parameters():
        if not parameter._post_accumulate_grad_hooks:
            parameter.register_post_accumulate_grad_hook(_average)


def _average(parameter: Tensor) -> None:
    if parameter.grad is not None:
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(dist.get_world_size())
