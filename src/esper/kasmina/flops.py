"""Counting floating-point operations: of a module, which may be on the meta device, or of a model on an example."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from esper.kasmina.probe import Example, evaluate_on
from esper.kasmina.torch_private import TorchDispatchMode, tree_leaves
from esper.leyline import InputError, first_line

_FORMULAS = {
    **flop_registry,
    # torch has no formula for the attention that it runs on the CPU.
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[
        torch.ops.aten._scaled_dot_product_flash_attention
    ],
}


class FlopCounter(TorchDispatchMode):
    """Counts two operations per multiply-add of matrix products and convolutions, one per element of other results.

    torch's own counter leaves out everything but products, which would make a normalisation look free.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        count = _FORMULAS.get(func.overloadpacket)
        if count is not None:
            self.total += count(*args, **(kwargs or {}), out_val=result)
        elif isinstance(first := result[0] if isinstance(result, tuple) else result, Tensor) and not func.is_view:
            self.total += first.numel()
        return result


def count_flops(module: nn.Module, sample: Tensor) -> int:
    """FLOPs of one forward pass of `module` on `sample`; both may live on the `meta` device."""
    counter = FlopCounter()
    with torch.no_grad(), counter:
        module(sample)
    return counter.total


def flops_per_sample(model: nn.Module, example: Example) -> int:
    """What a forward pass of `model` takes for one sample of `example`; the model stays as it is."""
    counter = FlopCounter()
    try:
        evaluate_on(model, example, counter)
    except Exception as error:
        raise InputError(f"the FLOPs of the model cannot be counted on the example: {first_line(error)}") from error
    tensors = (leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor) and leaf.ndim)
    return counter.total // max(next((tensor.shape[0] for tensor in tensors), 1), 1)
