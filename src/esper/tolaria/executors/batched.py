"""Running many copies of a module at once, each with parameters and inputs of its own."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from esper.leyline import InputError


class _ConvByProduct(nn.Conv1d):
    """A convolution over series as one matrix product.

    Stacked, it becomes a batched product; what vmap makes of a convolution is one of many groups, which is slow.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The same as `nn.Conv1d`."""
        kernel, stride, padding = self.kernel_size[0], self.stride[0], int(self.padding[0])
        windows = F.pad(x.transpose(1, 2), (0, 0, padding, padding)).unfold(1, kernel, stride)
        if self.groups == 1:
            # Of two axes each, so that vmap makes one product per copy of it and not one per sample.
            out = (windows.reshape(-1, x.shape[1] * kernel) @ self.weight.flatten(1).T).unflatten(0, windows.shape[:2])
        else:
            out = (windows * self.weight.squeeze(1)).sum(3)
        return (out if self.bias is None else out + self.bias).transpose(1, 2)  # type: ignore[no-any-return]

    @staticmethod
    def can_replace(module: nn.Module) -> bool:
        """Whether this class computes what `module` does."""
        return (
            type(module) is nn.Conv1d
            and module.padding_mode == "zeros"
            and isinstance(module.padding, tuple)
            and module.dilation == (1,)
            and module.groups in (1, module.in_channels)
            and module.out_channels % module.groups == 0
            and (module.groups == 1 or module.out_channels == module.in_channels)
        )


class Batched:
    """A module as a function of stacked parameters `[R, ...]` and stacked inputs `[R, B, ...]`."""

    def __init__(self, module: nn.Module) -> None:
        if list(module.buffers()) or any(isinstance(part, nn.modules.dropout._DropoutNd) for part in module.modules()):
            raise InputError(
                f"{type(module).__name__} keeps running statistics or draws random numbers, so copies of it cannot "
                "run as one; use the executor 'loop'"
            )
        for part in module.modules():
            if _ConvByProduct.can_replace(part):
                part.__class__ = _ConvByProduct
        self.module = module
        self.shapes = [parameter.shape for parameter in module.parameters()]
        self.size = sum(shape.numel() for shape in self.shapes)
        self._places = [
            (owner, name) for owner in module.modules() for name, p in owner._parameters.items() if p is not None
        ]
        self._each = vmap(self._call)
        self._shared = vmap(self._call, in_dims=(0, None))

    def __call__(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """The outputs `[R, B, ...]`."""
        result: Tensor = self._each(tuple(parameters), x)
        return result

    def on_shared(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """The outputs of all copies on the same inputs `[B, ...]`."""
        result: Tensor = self._shared(tuple(parameters), x)
        return result

    def _call(self, parameters: tuple[Tensor, ...], x: Tensor) -> Tensor:
        # What torch.func.functional_call does, without looking the names up again at every call.
        own = [owner._parameters[name] for owner, name in self._places]
        try:
            for (owner, name), given in zip(self._places, parameters, strict=True):
                owner._parameters[name] = given  # type: ignore[assignment]
            result: Tensor = self.module(x)
        finally:
            for (owner, name), parameter in zip(self._places, own, strict=True):
                owner._parameters[name] = parameter
        return result


class GatherRows(torch.autograd.Function):
    """Rows `index` of `h`, where only rows marked in `passes` send a gradient back; no row may occur twice."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, h: Tensor, index: Tensor, passes: Tensor) -> Tensor:
        """Gather."""
        ctx.save_for_backward(index[passes], passes)
        ctx.shape = h.shape  # type: ignore[attr-defined]
        return h[index]

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Scatter."""
        target, passes = ctx.saved_tensors  # type: ignore[attr-defined]
        result = gradient.new_zeros(ctx.shape)  # type: ignore[attr-defined]
        result[target] = gradient[passes]
        return result, None, None


class AddRows(torch.autograd.Function):
    """`h` with `scale * delta` added to its rows `index`, of which none may occur twice."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, h: Tensor, delta: Tensor, index: Tensor, scale: Tensor
    ) -> Tensor:
        """Add."""
        ctx.save_for_backward(index, scale)
        result = h.clone()
        result[index] += scale * delta
        return result

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx,
        gradient: Tensor,
    ) -> tuple[Tensor, Tensor, None, None]:
        """The host's gradient passes; the seeds' is scaled."""
        index, scale = ctx.saved_tensors  # type: ignore[attr-defined]
        return gradient, scale * gradient[index], None, None
