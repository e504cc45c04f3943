"""Running many copies of a module at once, each with parameters and inputs of its own."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from esper.kasmina.torch_private import DROPOUT, own_parameters
from esper.leyline import InputError
from esper.tolaria.executors.row_layers import ROW_LAYERS, row_class

_TRIAL_COPIES, _TRIAL_SAMPLES = 2, 3


class Batched:
    """A module as a function of stacked parameters `[R, ...]` and stacked inputs `[R, B, ...]`.

    Two ways: *folded*, the samples of all copies as one batch through row layers, and `vmap`, which knows every
    module but costs several times as much per call. The first call tries both on random numbers, and where folding
    gives something else, as in a module that mixes samples, `vmap` it is.
    """

    def __init__(self, module: nn.Module) -> None:
        if list(module.buffers()) or any(isinstance(part, DROPOUT) for part in module.modules()):
            raise InputError(
                f"{type(module).__name__} keeps running statistics or draws random numbers, so copies of it cannot "
                "run as one; use the executor 'loop'"
            )
        self.shapes = [parameter.shape for parameter in module.parameters()]
        self.size = sum(shape.numel() for shape in self.shapes)
        self._plain, self._folded = _Parametrised(module), _Parametrised(_with_row_layers(module))
        self._folds: bool | None = None
        self._mapped = vmap(self._plain)

    def __call__(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """The outputs `[R, B, ...]`."""
        if self._folds is None:
            self._folds = self._try_folding(x)
        if self._folds:
            return self._fold(parameters, x)
        result: Tensor = self._mapped(tuple(parameters), x)
        return result

    def alone(self, x: Tensor) -> Tensor:
        """The outputs `[B, ...]` for inputs that all copies share, of a module without parameters."""
        return self._plain((), x)

    def on_shared(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """The outputs of all copies on the same inputs `[B, ...]`."""
        return self(parameters, x.expand(len(parameters[0]), *x.shape))

    def _fold(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        # Row layers find their own row in stacked parameters; bare ones are repeated for every sample.
        rows, samples = x.shape[:2]
        own = [
            _per_sample(parameter, samples, x.ndim - 2) if bare else parameter
            for parameter, bare in zip(parameters, self._folded.bare, strict=True)
        ]
        out = self._folded(own, x.flatten(0, 1))
        return out.view(rows, samples, *out.shape[1:])

    def _try_folding(self, x: Tensor) -> bool:
        """Whether folding gives what `vmap` gives, on random parameters: real ones may be born 0."""
        if not x.is_floating_point():
            return False
        # A generator of its own, because the trial must not change what anybody else draws.
        generator = torch.Generator().manual_seed(0)
        trial = torch.randn(_TRIAL_COPIES, _TRIAL_SAMPLES, *x.shape[2:], generator=generator, dtype=x.dtype)
        shapes = [(_TRIAL_COPIES, *shape) for shape in self.shapes]
        with torch.no_grad():
            parameters = tuple(torch.randn(shape, generator=generator, dtype=x.dtype) for shape in shapes)
            try:
                folded = self._fold(parameters, trial)
            except RuntimeError:  # shapes that do not fit: something in the module is not per sample
                return False
            mapped = self._mapped(parameters, trial)
        return folded.shape == mapped.shape and torch.allclose(folded, mapped, rtol=1e-3, atol=1e-4)


class _Parametrised:
    """A module called with parameters from outside, in the order of `module.parameters()`."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._places: list[tuple[dict[str, Any], str]] = []
        self.bare: list[bool] = []
        """Of each parameter: whether it belongs to no row layer."""
        for owner in module.modules():
            parameters = own_parameters(owner)
            named = [name for name, parameter in parameters.items() if parameter is not None]
            self._places += [(parameters, name) for name in named]
            self.bare += [not isinstance(owner, ROW_LAYERS)] * len(named)

    def __call__(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        # The module's own parameters give way for as long as the call takes.
        own = [place[name] for place, name in self._places]
        try:
            for (place, name), given in zip(self._places, parameters, strict=True):
                place[name] = given
            result: Tensor = self._module(x)
        finally:
            for (place, name), parameter in zip(self._places, own, strict=True):
                place[name] = parameter
        return result


def _with_row_layers(module: nn.Module) -> nn.Module:
    """A copy whose layers take stacked parameters, as far as there are such layers."""
    copied = copy.deepcopy(module)
    for part in copied.modules():
        part.__class__ = row_class(part) or part.__class__
    return copied


def _per_sample(parameter: Tensor, samples: int, sample_axes: int) -> Tensor:
    """`[R, ...]` to `[R * B, ...]`, with as many axes as the module's input, so that it broadcasts as it did."""
    rows, *shape = parameter.shape
    aligned = parameter.reshape(rows, 1, *[1] * (sample_axes - len(shape)), *shape)
    return aligned.expand(-1, samples, *aligned.shape[2:]).flatten(0, 1)


class GatherRows(torch.autograd.Function):
    """Rows `index` of `h`, of which only those at `passing` send a gradient back; no row may occur twice."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, h: Tensor, index: Tensor, passing: Tensor) -> Tensor:
        ctx.save_for_backward(index, passing)
        ctx.shape = h.shape  # type: ignore[attr-defined]
        return h.index_select(0, index)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:
        index, passing = ctx.saved_tensors  # type: ignore[attr-defined]
        result = gradient.new_zeros(ctx.shape)  # type: ignore[attr-defined]
        # Rows that must not teach what they read, as those of isolated seeds, are left out.
        if len(passing) < len(index):
            index, gradient = index[passing], gradient.index_select(0, passing)
        return result.index_add_(0, index, gradient), None, None
