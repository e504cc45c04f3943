"""Where an affine seed would add nothing: behind a linear layer that could learn the same by itself."""

from torch import nn
from torch.optim import Optimizer


def ends_in_trained_linear(model: nn.Module, path: str, optimizer: Optimizer | None) -> bool:
    """Whether the output of the submodule `path` comes from a linear layer or embedding that is trained.

    Frozen ones are another matter, and so are tied weights: there a seed changes one of the places that they serve.
    """
    layer = model.get_submodule(path)
    while type(layer) is nn.Sequential and len(layer):
        layer = layer[-1]
    return _is_affine(layer) and _is_trained(layer, optimizer) and _used_once(model, layer)


def _is_affine(layer: nn.Module) -> bool:
    """Exactly these classes: a subclass, or a parametrisation, may compute something else."""
    return type(layer) is nn.Linear or (type(layer) is nn.Embedding and layer.max_norm is None)


def _is_trained(layer: nn.Module, optimizer: Optimizer | None) -> bool:
    groups = [] if optimizer is None else optimizer.param_groups
    owned = {id(parameter) for group in groups for parameter in group["params"]}
    return all(p.requires_grad and (optimizer is None or id(p) in owned) for p in layer.parameters())


def _used_once(model: nn.Module, layer: nn.Module) -> bool:
    own = {id(parameter) for parameter in layer.parameters()}
    holders = [module for _, module in model.named_modules(remove_duplicate=False)]
    return sum(any(id(p) in own for p in module.parameters(recurse=False)) for module in holders) == 1
