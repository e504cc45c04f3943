"""Snapshots of a growing network: take one, and return to it bit for bit, whatever grew or went in between."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim import Optimizer

from esper.kasmina.blueprints.registry import find_blueprint
from esper.kasmina.graft import GraftedModel
from esper.kasmina.optimizer_groups import SLOT_KEY
from esper.kasmina.seed_state import differing
from esper.kasmina.table import SlotTable
from esper.leyline import InputError


@dataclass(frozen=True, slots=True)
class _GroupSnapshot:
    slot_id: str | None
    """The slot whose seed the group holds; None for a group of the host."""
    settings: dict[str, Any]
    states: list[dict[str, Any]]
    """Optimiser state of each parameter, in the order of the group."""
    seeds: list[str | None]
    """For each parameter its name in the grafted model if it belongs to a seed, else None."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that training and growth change, detached and on the CPU."""

    table: SlotTable
    score: Tensor
    tensors: dict[str, Tensor]
    groups: list[_GroupSnapshot]

    def state_dict(self) -> dict[str, Any]:
        groups = [[group.slot_id, group.settings, group.states, group.seeds] for group in self.groups]
        return {"table": self.table.columns(), "score": self.score, "tensors": self.tensors, "groups": groups}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], num_slots: int) -> Self:
        """The inverse of `state_dict`; what is not a snapshot of a model with so many slots is refused."""
        if not isinstance(state, Mapping) or set(state) != {"table", "score", "tensors", "groups"}:
            raise InputError("a snapshot holds a table, a score, tensors and groups, and nothing else")
        table, score, tensors, groups = (state[name] for name in ("table", "score", "tensors", "groups"))
        if not isinstance(score, Tensor) or score.shape != (1,) or not score.is_floating_point():
            raise InputError("the score of a snapshot must be one number in a tensor")
        if not isinstance(tensors, Mapping) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
            raise InputError("the tensors of a snapshot must be tensors by name")
        if not isinstance(groups, list) or not all(map(_is_group, groups)):
            raise InputError("the groups of a snapshot must be slot, settings, states and seeds of parameter groups")
        made = [_GroupSnapshot(*group) for group in groups]
        return cls(SlotTable.from_columns(table, num_slots), score, dict(tensors), made)


def _is_group(group: Any) -> bool:
    if not isinstance(group, list) or len(group) != 4:
        return False
    slot_id, settings, states, seeds = group
    lists = isinstance(states, list) and isinstance(seeds, list) and len(states) == len(seeds)
    names = lists and all(name is None or isinstance(name, str) for name in seeds)
    plain = lists and all(isinstance(state, dict) for state in states)
    return (slot_id is None or isinstance(slot_id, str)) and isinstance(settings, dict) and names and plain


def take_snapshot(model: GraftedModel) -> Snapshot:
    """A copy of the state of `model`, its seeds, its slot table and its optimiser."""
    return Snapshot(
        model.table.clone(),
        model.score.clone(),
        {name: _copy(tensor) for name, tensor in _tensors(model).items()},
        _copy_groups(model.optimizer, _seed_names(model)) if model.optimizer is not None else [],
    )


def restore_snapshot(model: GraftedModel, snapshot: Snapshot) -> None:
    """Return `model` to `snapshot`, bit-exactly.

    Tensors that still exist are written in place, so references to them stay good; seeds culled since are
    planted anew, seeds germinated since are removed. Gradients are dropped. No random number is drawn. A
    snapshot of another model, or of an optimiser with other groups, is refused before anything changes.
    """
    check_snapshot(model, snapshot)
    generator_state = model.generator.get_state()
    model.follow(snapshot.table.clone())
    model.generator.set_state(generator_state)
    model.score = snapshot.score.clone()
    with torch.no_grad():
        for name, tensor in _tensors(model).items():
            saved = snapshot.tensors[name]
            if tensor.shape == saved.shape:
                tensor.copy_(saved)
            else:  # a buffer that has grown since, such as a cache
                owner, _, attribute = name.rpartition(".")
                setattr(model.get_submodule(owner), attribute, saved.to(tensor.device, copy=True))
            tensor.grad = None
    if model.optimizer is not None:
        _restore_groups(model, model.optimizer, snapshot.groups)
    model.growth.refresh_mirrors()


def check_snapshot(model: GraftedModel, snapshot: Snapshot) -> None:
    saved = {name: tensor.shape for name, tensor in snapshot.tensors.items() if name.startswith("host.")}
    parameters = {f"host.{name}": p.shape for name, p in model.host.named_parameters()}
    present = parameters | {f"host.{name}": saved.get(f"host.{name}") for name, _ in model.host.named_buffers()}
    if different := differing(saved, present):
        raise InputError(f"the snapshot is not of this host: {', '.join(different[:3])} differ")
    _check_seeds(model, snapshot)
    if model.optimizer is not None:
        seeds = _seed_names(model)
        hosts = [group["params"] for group in model.optimizer.param_groups if SLOT_KEY not in group]
        sizes = [sum(id(parameter) not in seeds for parameter in params) for params in hosts]
        if sizes != [group.seeds.count(None) for group in snapshot.groups if group.slot_id is None]:
            raise InputError("the optimizer's own parameter groups have changed since the snapshot was taken")


def _check_seeds(model: GraftedModel, snapshot: Snapshot) -> None:
    expected: dict[str, torch.Size] = {}
    buffers = {name for name, _ in model.named_buffers()}
    for index, (site, kind) in enumerate(zip(model.sites, snapshot.table.blueprint[0].tolist(), strict=True)):
        if kind:
            seed = find_blueprint(site.shape.family, kind).outline(site.shape)
            expected |= {f"slots.{index}.seed.{name}": p.shape for name, p in seed.named_parameters()}
            buffers |= {f"slots.{index}.seed.{name}" for name, _ in seed.named_buffers()}
    own = {name: tensor.shape for name, tensor in snapshot.tensors.items() if not name.startswith("host.")}
    saved = {name: shape for name, shape in own.items() if name not in buffers}
    if different := differing(saved, expected):
        raise InputError(f"the snapshot is not of these slots: {', '.join(different[:3])} differ")


def _seed_names(model: GraftedModel) -> dict[int, str]:
    """Names of the parameters of all seeds, by the identity of the parameter."""
    return {id(parameter): f"slots.{name}" for name, parameter in model.slots.named_parameters()}


def _tensors(model: GraftedModel) -> dict[str, Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _copy_groups(optimizer: Optimizer, seeds: Mapping[int, str]) -> list[_GroupSnapshot]:
    return [
        _GroupSnapshot(
            group.get(SLOT_KEY),
            copy.deepcopy({key: value for key, value in group.items() if key != "params"}),
            [_copy_state(optimizer.state.get(parameter, {})) for parameter in group["params"]],
            [seeds.get(id(parameter)) for parameter in group["params"]],
        )
        for group in optimizer.param_groups
    ]


def _copy_state(state: dict[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Tensor) else copy.deepcopy(value) for key, value in state.items()}


def _restore_groups(model: GraftedModel, optimizer: Optimizer, snapshots: list[_GroupSnapshot]) -> None:
    seeds = _seed_names(model)
    host_groups = iter([group for group in optimizer.param_groups if SLOT_KEY not in group])
    seed_groups = {group[SLOT_KEY]: group for group in optimizer.param_groups if SLOT_KEY in group}
    restored = []
    for snapshot in snapshots:
        group = next(host_groups) if snapshot.slot_id is None else seed_groups[snapshot.slot_id]
        _restore_settings(group, snapshot.settings)
        # A fused kernel reads the step count where its parameter is.
        counts_beside = bool(group.get("fused") or group.get("capturable"))
        own = iter([parameter for parameter in group["params"] if id(parameter) not in seeds])
        # Seeds that joined a group stand in it in the order in which they came.
        group["params"][:] = [next(own) if name is None else model.get_parameter(name) for name in snapshot.seeds]
        for parameter, state in zip(group["params"], snapshot.states, strict=True):
            old = optimizer.state.pop(parameter, {})
            if state:
                optimizer.state[parameter] = {
                    key: _place(value, old.get(key), parameter, counts_beside) for key, value in state.items()
                }
        restored.append(group)
    optimizer.param_groups[:] = restored


def _restore_settings(group: dict[str, Any], saved: Mapping[str, Any]) -> None:
    for key, value in copy.deepcopy(dict(saved)).items():
        present = group.get(key)
        if isinstance(present, Tensor) and isinstance(value, Tensor):
            present.copy_(value)  # a learning rate that is a tensor stays that tensor, where it is
        else:
            group[key] = value


def _place(value: Any, old: Any, parameter: Tensor, counts_beside: bool) -> Any:
    """A fresh copy of a state entry, where the present one is; else beside its parameter, counts maybe on the CPU."""
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    beside = parameter.device if counts_beside or value.shape == parameter.shape else torch.device("cpu")
    return value.to(old.device if isinstance(old, Tensor) else beside, copy=True)
