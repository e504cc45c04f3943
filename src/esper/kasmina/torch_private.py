"""The names private to torch that kasmina and the packages above it use, so that a new release has one file to break.

Clipping of gradients is here too, because it is built on them.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map_only as tree_map_only

Tensors = tuple[Tensor, ...] | list[Tensor]

# Common parents of layers; torch's public names are only their children.
DROPOUT: type[nn.Module] = nn.modules.dropout._DropoutNd
Convolution = nn.modules.conv._ConvNd
BatchNorm = nn.modules.batchnorm._NormBase


def own_parameters(module: nn.Module) -> dict[str, Any]:
    """A module's own parameters by name, to be exchanged in place.

    `functional_call` does that too, but looks every name up again at each call.
    """
    return module._parameters


def own_children(module: nn.Module) -> dict[str, Any]:
    """A module's children by name, to be exchanged in place. `named_children` leaves out one that comes twice."""
    return module._modules


def state_hooks(module: nn.Module) -> list[Any]:
    """The hooks that run when the state dict of `module` is made."""
    return list(module._state_dict_hooks.values())


def remove_hooks(module: nn.Module, kinds: tuple[type, ...]) -> None:
    """Take the hooks off `module` that are objects of these kinds, or bound to one; torch gives handles alone."""
    of_pass = (module._forward_hooks, module._forward_pre_hooks)
    of_state = (module._state_dict_hooks, module._load_state_dict_pre_hooks)
    flags = (module._forward_hooks_with_kwargs, module._forward_pre_hooks_with_kwargs)
    for hooks in (*of_pass, *of_state):
        for key, hook in list(hooks.items()):
            plain = getattr(hook, "hook", hook)  # torch wraps hooks that load
            if isinstance(getattr(plain, "__self__", plain), kinds):
                for known in (hooks, *flags, module._forward_hooks_always_called):
                    known.pop(key, None)


def writes_into(tensor: Tensor) -> int:
    """How often something was written into the tensor in place."""
    return tensor._version


def storage_id(tensor: Tensor) -> int:
    """What a tensor has in common with its views, as long as one of them lives."""
    address: int = tensor.untyped_storage()._cdata
    return address


def tensor_norms(tensors: Tensors) -> tuple[Tensor, ...]:
    """The norm of each tensor. Public calls take one tensor each, and many small ones cost more than their numbers."""
    return torch._foreach_norm(tensors)


def scale_tensors(tensors: Tensors, factors: Tensor | Tensors) -> None:
    """Multiply tensors in place, by one factor or by one each. In one call, for the reason of `tensor_norms`."""
    torch._foreach_mul_(tensors, factors)


def copy_tensors(targets: Tensors, sources: Tensors) -> None:
    """Copy `sources` into `targets`. In one call, for the reason of `tensor_norms`."""
    torch._foreach_copy_(targets, sources)


def adamw_step(
    weights: list[Tensor], gradients: list[Tensor], first: list[Tensor], second: list[Tensor], steps: list[Tensor],
    *, lr: float, weight_decay: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
) -> None:  # fmt: skip
    """What `torch.optim.AdamW(fused=True)` does; as a class it would want parameters that never come or go."""
    torch._fused_adamw_(
        weights, gradients, first, second, [], steps,
        lr=lr, beta1=betas[0], beta2=betas[1], weight_decay=weight_decay, eps=eps, amsgrad=False, maximize=False,
    )  # fmt: skip


def sgd_step(
    weights: list[Tensor], gradients: list[Tensor], momenta: list[Tensor],
    *, lr: float, weight_decay: float, momentum: float,
) -> None:  # fmt: skip
    """What `torch.optim.SGD(fused=True)` does with momenta that began at 0; see `adamw_step`."""
    torch._fused_sgd_(
        weights, gradients, momenta,
        lr=lr, weight_decay=weight_decay, momentum=momentum, dampening=0.0, nesterov=False, maximize=False,
        is_first_step=False,
    )  # fmt: skip


def unwrapped(network: nn.Module) -> nn.Module:
    """The module in a wrapper of `torch.compile`, which is known by this attribute alone; others as they are."""
    return network._orig_mod if hasattr(network, "_orig_mod") else network  # type: ignore[return-value]


def compile_recurrent(network: nn.Module) -> None:
    """Compile in place a network that holds an LSTM, which Dynamo otherwise leaves out; any length of sequences."""
    torch._dynamo.config.allow_rnn = True
    network.compile(dynamic=True)


def is_compiled(model: nn.Module) -> bool:
    """Whether `torch.compile` wrapped the model, or one of its modules was compiled in place; torch has no question."""
    return hasattr(model, "_orig_mod") or any(module._compiled_call_impl is not None for module in model.modules())


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
