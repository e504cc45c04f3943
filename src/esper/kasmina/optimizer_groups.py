"""Care of the optimiser while a network grows: the parameters of a seed come and go with it.

A seed either gets a parameter group of its own, which whoever owns the training loop can treat apart, or joins the
group that trains its neighbour, so that code which counts groups, as learning-rate schedulers do, never notices.
"""

import copy
from itertools import takewhile
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Adagrad, Muon, Optimizer, SparseAdam

from esper.kasmina.torch_private import tree_map_only
from esper.leyline import InputError

SLOT_KEY = "esper_slot"
"""Entry of a parameter group that says which slot's seed it holds."""

SeedGroups = Literal["own", "joined"]


def check_owns(optimizer: Optimizer, host: nn.Module) -> None:
    """Refuse an optimiser that cannot follow the growth of `host`, or trains no parameter of it."""
    if isinstance(optimizer, LBFGS | Muon | SparseAdam):
        kind = type(optimizer).__name__
        raise InputError(f"{kind} cannot follow growth: it takes one group, matrices or sparse gradients only")
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not any(id(parameter) in owned for parameter in host.parameters()):
        raise InputError("the optimizer holds no parameter of this model; make it from model.parameters()")


def add_seed(
    optimizer: Optimizer, slot_id: str, seed: nn.Module, host: nn.Module, path: str, groups: SeedGroups
) -> None:
    """Let the optimiser train `seed`, with the settings of the group that trains its neighbour.

    That is the submodule `path` of the host, or, where the optimiser trains none of its parameters, what it trains
    before it, and else after it. Where parts of that are in different groups, its weight matrix counts, not biases and
    scales: the first in the submodule, or the one nearest before it. A group of the seed's own starts with the present
    settings (learning rate, decay, …) of that group; a seed that joins it shares them for good.
    """
    reference = _group_for(optimizer, host, path)
    named = [(f"{slot_id}.{name}", parameter) for name, parameter in seed.named_parameters()]
    if groups == "joined":
        reference["params"].extend(parameter for _, parameter in named)
        if "param_names" in reference:
            reference["param_names"].extend(name for name, _ in named)
    else:
        settings = {key: _own(value) for key, value in reference.items() if key not in ("params", "param_names")}
        params = named if "param_names" in reference else [parameter for _, parameter in named]
        optimizer.add_param_group({**settings, "params": params, SLOT_KEY: slot_id})
    if isinstance(optimizer, Adagrad):
        for parameter in seed.parameters():
            optimizer.state[parameter] = _adagrad_state(reference, parameter)


def remove_seed(optimizer: Optimizer, slot_id: str, seed: nn.Module) -> None:
    """Take the parameters of `seed` and their optimiser state out of the optimiser, with a group of their own."""
    gone = {id(parameter) for parameter in seed.parameters()}
    for parameter in seed.parameters():
        optimizer.state.pop(parameter, None)
    # In place: others may hold on to these very lists.
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group.get(SLOT_KEY) != slot_id]
    for group in optimizer.param_groups:
        for key, rest in _lists_without(gone, group, group).items():
            group[key][:] = rest


def without_seeds(optimizer: Optimizer, slots: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """`state`, the optimiser's state dict, without the parameters of seeds that joined groups of the host."""
    seeds = {id(parameter) for parameter in slots.parameters()}
    pairs = zip(optimizer.param_groups, state["param_groups"], strict=True)
    groups = [{**saved, **_lists_without(seeds, group, saved)} for group, saved in pairs]
    kept = {number for group in groups for number in group["params"]}
    entries = {number: entry for number, entry in state["state"].items() if number in kept}
    return {**state, "state": entries, "param_groups": groups}


def _lists_without(gone: set[int], group: dict[str, Any], lists: dict[str, Any]) -> dict[str, list[Any]]:
    """Those of `lists` that go along with the parameters of `group`, without the places of what is `gone`, by id."""
    keep = [index for index, parameter in enumerate(group["params"]) if id(parameter) not in gone]
    return {key: [lists[key][index] for index in keep] for key in ("params", "param_names") if key in lists}


def _group_for(optimizer: Optimizer, host: nn.Module, path: str) -> dict[str, Any]:
    group_of = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    neighbour = host.get_submodule(path)
    before = list(takewhile(lambda module: module is not neighbour, host.modules()))
    nearest_first = (
        neighbour.parameters(),
        (parameter for module in reversed(before) for parameter in module.parameters(recurse=False)),
        host.parameters(),
    )
    for parameters in nearest_first:
        trained = [parameter for parameter in parameters if id(parameter) in group_of]
        if trained:
            return group_of[id(min(trained, key=_is_vector))]  # the first of the matrices, if there are any
    return optimizer.param_groups[0]


def _own(value: Any) -> Any:
    """A copy of a setting that shares no tensor with it: schedulers change a tensor learning rate in place."""
    return tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), copy.copy(value))


def _is_vector(parameter: Tensor) -> bool:
    """Whether it is a bias or a scale; those often are in a group without decay, where a seed does not belong."""
    return parameter.ndim < 2


def _adagrad_state(group: dict[str, Any], parameter: Tensor) -> dict[str, Tensor]:
    """Adagrad alone makes its state when it is built, and fails on parameters that come later without it."""
    device = parameter.device if group["fused"] else torch.device("cpu")
    sums = torch.full_like(parameter, group["initial_accumulator_value"], memory_format=torch.preserve_format)
    return {"step": torch.zeros((), device=device), "sum": sums.detach()}
