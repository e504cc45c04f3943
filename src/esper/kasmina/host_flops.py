"""The FLOPs of somebody's model, counted as it runs on an example."""

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from esper.kasmina.flops import FlopCounter
from esper.kasmina.modes import eval_mode
from esper.kasmina.probe import Example, call_with
from esper.kasmina.random_state import keeping_random_state
from esper.leyline import InputError


def flops_per_sample(model: nn.Module, example: Example) -> int:
    """What a forward pass of `model` takes for one sample of `example`; the model stays as it is."""
    counter = FlopCounter()
    try:
        with eval_mode(model), keeping_random_state(model), torch.no_grad(), counter:
            call_with(model, example)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"the FLOPs of the model cannot be counted on the example: {lines[0]}") from error
    tensors = (leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor) and leaf.ndim)
    return counter.total // max(next((tensor.shape[0] for tensor in tensors), 1), 1)
