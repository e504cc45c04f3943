"""Snapshots of a growing network: take one, and return to it bit for bit, whatever grew or went in between."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from esper.kasmina.graft import GraftedModel
from esper.kasmina.optimizer_groups import SLOT_KEY
from esper.kasmina.table import SlotTable


@dataclass(frozen=True, slots=True)
class _GroupSnapshot:
    slot_id: str | None
    """The slot whose seed the group holds; None for a group of the host."""
    settings: dict[str, Any]
    states: list[dict[str, Any]]
    """Optimiser state of each parameter, in the order of the group."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that training and growth change, detached and on the CPU."""

    table: SlotTable
    score: Tensor
    tensors: dict[str, Tensor]
    groups: list[_GroupSnapshot]


def take_snapshot(model: GraftedModel) -> Snapshot:
    """A copy of the state of `model`, its seeds, its slot table and its optimiser."""
    return Snapshot(
        model.table.clone(),
        model.score.clone(),
        {name: _copy(tensor) for name, tensor in _tensors(model).items()},
        _copy_groups(model.optimizer) if model.optimizer is not None else [],
    )


def restore_snapshot(model: GraftedModel, snapshot: Snapshot) -> None:
    """Return `model` to `snapshot`, bit-exactly.

    Tensors that still exist are written in place, so references to them stay good; seeds culled since are
    planted anew, seeds germinated since are removed. Gradients are dropped. No random number is drawn.
    """
    model.table = snapshot.table.clone()
    model.score = snapshot.score.clone()
    generator_state = model.generator.get_state() if model.generator is not None else None
    with torch.random.fork_rng(devices=[]):
        model.follow_table()
    if model.generator is not None and generator_state is not None:
        model.generator.set_state(generator_state)
    with torch.no_grad():
        for name, tensor in _tensors(model).items():
            tensor.copy_(snapshot.tensors[name])
            tensor.grad = None
    if model.optimizer is not None:
        _restore_groups(model.optimizer, snapshot.groups)


def _tensors(model: GraftedModel) -> dict[str, Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _copy_groups(optimizer: Optimizer) -> list[_GroupSnapshot]:
    return [
        _GroupSnapshot(
            group.get(SLOT_KEY),
            {key: value for key, value in group.items() if key != "params"},
            [_copy_state(optimizer.state.get(parameter, {})) for parameter in group["params"]],
        )
        for group in optimizer.param_groups
    ]


def _copy_state(state: dict[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Tensor) else value for key, value in state.items()}


def _restore_groups(optimizer: Optimizer, snapshots: list[_GroupSnapshot]) -> None:
    host_groups = iter([group for group in optimizer.param_groups if SLOT_KEY not in group])
    seed_groups = {group[SLOT_KEY]: group for group in optimizer.param_groups if SLOT_KEY in group}
    restored = []
    for snapshot in snapshots:
        group = next(host_groups) if snapshot.slot_id is None else seed_groups[snapshot.slot_id]
        group.update(snapshot.settings)
        for parameter, state in zip(group["params"], snapshot.states, strict=True):
            optimizer.state[parameter] = {key: _place(value, parameter) for key, value in state.items()}
            if not state:
                del optimizer.state[parameter]
        restored.append(group)
    optimizer.param_groups[:] = restored


def _place(value: Any, parameter: Tensor) -> Any:
    """A fresh copy of a state entry: moments beside their parameter, step counts (no axes) on the CPU."""
    if not isinstance(value, Tensor):
        return value
    return value.to(parameter.device if value.ndim else "cpu", copy=True)
