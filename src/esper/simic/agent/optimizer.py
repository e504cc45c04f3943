"""The optimiser of the policy, its parameter groups, and gradient clipping with the norms before and after."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from esper.kasmina.gradients import clip_factors
from esper.kasmina.torch_private import scale_tensors, tensor_norms
from esper.leyline import DEFAULT_ADAM_EPS
from esper.simic.agent.network import FactoredRecurrentActorCritic
from esper.simic.config.learner import GradClipMode

VALUE_UNIT = "value"
TRUNK_UNIT = "trunk"


def parameter_units(network: FactoredRecurrentActorCritic) -> dict[str, list[nn.Parameter]]:
    """Parameters by the part they belong to: each policy head by name, `value`, and `trunk` for all that is shared."""
    units = {name: list(network.policy_head(name).parameters()) for name in network.spec.names}
    units[VALUE_UNIT] = list(network.value_head.parameters())
    trunk = (network.feature_net, network.lstm, network.lstm_ln)
    units[TRUNK_UNIT] = [parameter for module in trunk for parameter in module.parameters()]
    return units


def build_optimizer(
    network: FactoredRecurrentActorCritic, lr: float, weight_decay: float, head_lr_scale: Mapping[str, float]
) -> torch.optim.Adam:
    """Adam over everything; with weight decay AdamW that decays the critic only.

    Decay pulls a policy towards uniform and a recurrent trunk towards forgetting, so neither is decayed. Heads with a
    learning rate of their own get a group of their own.
    """
    options = {"lr": lr, "eps": DEFAULT_ADAM_EPS} | adam_kernels(network.lstm_ln.weight.device)
    if weight_decay == 0.0 and not head_lr_scale:
        return torch.optim.Adam(network.parameters(), **options)
    # Groups: the heads without a factor, the trunk, the value head, and each head with a factor of its own.
    units = parameter_units(network)
    scaled = {name: units[name] for name in network.spec.names if name in head_lr_scale}
    actor = [p for name in network.spec.names if name not in scaled for p in units[name]]
    groups: list[dict[str, Any]] = [
        {"params": actor, "name": "actor", "weight_decay": 0.0},
        {"params": units[TRUNK_UNIT], "name": "shared", "weight_decay": 0.0},
        {"params": units[VALUE_UNIT], "name": "critic", "weight_decay": weight_decay},
    ]
    for name, parameters in scaled.items():
        groups.append(
            {"params": parameters, "name": _group_name(name), "weight_decay": 0.0, "lr": lr * head_lr_scale[name]}
        )
    kind = torch.optim.Adam if weight_decay == 0.0 else torch.optim.AdamW
    return kind([group for group in groups if group["params"]], **options)


def _group_name(head: str) -> str:
    """What the parameter group of a head with a learning rate of its own is called."""
    return f"actor_{head}"


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float, head_lr_scale: Mapping[str, float]) -> None:
    """Change the learning rate of an optimiser that `build_optimizer` made; heads keep their factors on it."""
    factors = {_group_name(head): factor for head, factor in head_lr_scale.items()}
    for group in optimizer.param_groups:
        group["lr"] = lr * factors.get(group.get("name", ""), 1.0)


def adam_kernels(device: torch.device) -> dict[str, Any]:
    """Which implementation of Adam to use: one fused kernel on CUDA, multi-tensor calls elsewhere."""
    fused = device.type == "cuda"
    return {"fused": True, "foreach": None} if fused else {"fused": None, "foreach": True}


def step_if_finite(optimizer: torch.optim.Optimizer, loss: Tensor) -> bool:
    """Take one step down `loss`; returns False and changes no parameter if the loss or a gradient is not finite."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if not bool(loss.detach().isfinite() & norm.isfinite()):
        return False
    optimizer.step()
    return True


class GradientNorms(NamedTuple):
    """Norms of one step, on the device: one per unit `[U]` before clipping, and the total before and after."""

    units: Tensor
    total: Tensor
    post_clip: Tensor


def clip_gradients(units: Mapping[str, list[nn.Parameter]], max_norm: float, mode: GradClipMode) -> GradientNorms:
    """Clip each unit to `max_norm`, or all together, in place and without waiting for the device."""
    names = [name for name, parameters in units.items() for p in parameters if p.grad is not None]
    gradients = [p.grad for parameters in units.values() for p in parameters if p.grad is not None]
    owner = torch.tensor([list(units).index(name) for name in names], device=gradients[0].device)
    # One multi-tensor call for all norms, summed by unit.
    squares = torch.stack(tensor_norms(gradients)).square()
    norms = squares.new_zeros(len(units)).index_add(0, owner, squares).sqrt()
    total = torch.linalg.vector_norm(norms)
    limited = norms if mode == "per_head" else total.expand_as(norms)
    factors = clip_factors(limited, max_norm).clamp(max=1.0)
    scale_tensors(gradients, factors[owner].unbind())
    return GradientNorms(norms, total, torch.linalg.vector_norm(norms * factors))
