"""Models inside wrappers: which can be grown in place, and which would silently not grow."""

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from esper.kasmina import GraftedModel, check_initialised
from esper.kasmina.torch_private import is_compiled
from esper.leyline import InputError


def unwrapped(model: nn.Module) -> nn.Module:
    """The module whose submodules get slots; a wrapper that would not see them is refused."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    if isinstance(model, DistributedDataParallel):
        return unwrapped(model.module)
    if isinstance(model, DataParallel):
        raise InputError(
            "DataParallel copies the model to every device without its seeds; pass the model itself, "
            "or wrap it in DistributedDataParallel"
        )
    if is_compiled(model):
        raise InputError(
            "this model was compiled before it was grown and would not see its seeds; pass the model itself, "
            "then train torch.compile(grower.model)"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError("a scripted model has a fixed graph and cannot grow; pass the module it was made from")
    if isinstance(model, GraftedModel):
        raise InputError("this model carries slots already; pass the model that was given to graft")
    check_initialised(model)
    if type(model).__name__ in ("FullyShardedDataParallel", "DeepSpeedEngine"):
        raise InputError(f"{type(model).__name__} shards parameters and cannot take new ones; pass the model itself")
    return model
