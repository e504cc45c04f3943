"""Merging a seed that is an affine map into the layer in front of it, where that changes nothing but rounding."""

import torch
from torch import Tensor, nn

from esper.kasmina.export.insert import give_bias


def merge_seed(model: nn.Module, path: str, seed: nn.Module) -> str | None:
    """Merge `seed` into the layer that makes the output of the submodule `path`; returns that layer's path.

    None, and nothing changes, where that would not be exact: if the seed is no affine map (it has no method
    `affine`), if the layer is no linear layer or embedding, or if its weights serve elsewhere too.
    """
    affine = getattr(seed, "affine", None)
    target = _last_layer(model, path)
    layer = model.get_submodule(target)
    if affine is None or not _mergeable(layer) or not _used_once(model, layer):
        return None
    with torch.no_grad():
        matrix, shift = (part.detach().double() for part in affine())
        _absorb(model, target, matrix, shift)
    return target


def _last_layer(model: nn.Module, path: str) -> str:
    module = model.get_submodule(path)
    while type(module) is nn.Sequential and len(module):
        path = f"{path}.{list(module._modules)[-1]}"
        module = model.get_submodule(path)
    return path


def _mergeable(layer: nn.Module) -> bool:
    """Exactly these classes: a subclass, or a parametrisation, may compute something else."""
    return type(layer) is nn.Linear or (type(layer) is nn.Embedding and layer.max_norm is None)


def _used_once(model: nn.Module, layer: nn.Module) -> bool:
    own = {id(parameter) for parameter in layer.parameters()}
    holders = [module for _, module in model.named_modules(remove_duplicate=False)]
    sharing = [module for module in holders if any(id(p) in own for p in module.parameters(recurse=False))]
    return len(sharing) == 1 and not layer._forward_hooks and not layer._forward_pre_hooks


def _absorb(model: nn.Module, path: str, matrix: Tensor, shift: Tensor) -> None:
    """Make the layer return `h + h @ matrix.T + shift`."""
    layer = model.get_submodule(path)
    weight: Tensor = layer.weight  # type: ignore[assignment]  # both kinds of layer have one
    both = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device) + matrix
    if isinstance(layer, nn.Embedding):
        weight.copy_(weight.double() @ both.T + shift)
        return
    give_bias(model, path)
    bias: Tensor = layer.bias  # type: ignore[assignment]
    weight.copy_(both @ weight.double())
    bias.copy_(both @ bias.double() + shift)
