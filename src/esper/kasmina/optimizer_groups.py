"""Care of the optimiser while a network grows: one parameter group per seed, made and removed with it."""

import copy
from typing import Any

from torch import nn
from torch.optim import LBFGS, Muon, Optimizer

from esper.leyline import InputError

SLOT_KEY = "esper_slot"
"""Entry of a parameter group that says which slot's seed it holds."""


def check_owns(optimizer: Optimizer, host: nn.Module) -> None:
    """Refuse an optimiser that cannot follow the growth of `host`, or trains no parameter of it."""
    if isinstance(optimizer, LBFGS | Muon):
        raise InputError(f"{type(optimizer).__name__} cannot follow growth: it takes one group, or matrices, only")
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not any(id(parameter) in owned for parameter in host.parameters()):
        raise InputError("the optimizer holds no parameter of this model; make it from model.parameters()")


def add_seed_group(optimizer: Optimizer, slot_id: str, seed: nn.Module, neighbour: nn.Module) -> None:
    """Add the parameters of `seed` as a group of their own.

    It takes the present settings (learning rate, decay, …) of the group that trains the submodule the
    seed sits behind, or of the first group where that submodule has no trained parameter.
    """
    reference = _group_of(optimizer, neighbour)
    settings = {key: copy.copy(value) for key, value in reference.items() if key not in ("params", "param_names")}
    named = [(f"{slot_id}.{name}", parameter) for name, parameter in seed.named_parameters()]
    params = named if "param_names" in reference else [parameter for _, parameter in named]
    optimizer.add_param_group({**settings, "params": params, SLOT_KEY: slot_id})


def remove_seed_group(optimizer: Optimizer, slot_id: str) -> None:
    """Remove the group of the seed in `slot_id` together with its optimiser state."""
    for group in optimizer.param_groups:
        if group.get(SLOT_KEY) == slot_id:
            for parameter in group["params"]:
                optimizer.state.pop(parameter, None)
    # In place: others may hold on to this very list.
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group.get(SLOT_KEY) != slot_id]


def _group_of(optimizer: Optimizer, neighbour: nn.Module) -> dict[str, Any]:
    wanted = {id(parameter) for parameter in neighbour.parameters()}
    for group in optimizer.param_groups:
        if any(id(parameter) in wanted for parameter in group["params"]):
            return group
    return optimizer.param_groups[0]
