"""What an update minimises and how it steps: terms of the loss, parameter groups, clipping, and the value memory.

Shapes: log_probs, entropies and `active` are `[G, L, H]`; values, returns, advantages and `valid` are `[G, L]`. Means
are masked: each head averages over the steps where it mattered, so rare heads are not diluted and padding is nothing.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

from esper.kasmina.torch_private import clip_factors, scale_tensors, tensor_norms
from esper.leyline import DEFAULT_ADAM_EPS
from esper.simic.agent.network import Policy, RecurrentActorCritic
from esper.simic.agent.rollout_buffer import SequenceBatch, minibatches
from esper.simic.config.training import GradClipMode, ValueLossType
from esper.simic.control.action_masks import ActionSpec, select_logits


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over all but the last dimension of `x [..., H]` where `mask` is True; 0 where it never is."""
    dims = tuple(range(x.dim() - 1))
    return torch.where(mask, x, 0.0).sum(dims) / mask.sum(dims).clamp(min=1)


def log_ratios(log_probs: Tensor, old_log_probs: Tensor, active: Tensor) -> Tensor:
    """Log of the probability ratio, exactly 0 where a head does not count."""
    return torch.where(active, log_probs - old_log_probs, 0.0)


def compute_per_head_advantages(advantages: Tensor, active: Tensor) -> Tensor:
    """`advantages [...]` for every head that counts and 0 for the others: `[..., H]`."""
    return torch.where(active, advantages.unsqueeze(-1), 0.0)


def policy_loss(log_ratio: Tensor, advantages: Tensor, active: Tensor, clip_ratio: float) -> tuple[Tensor, Tensor]:
    """Clipped surrogate, summed over heads, and the loss of each head `[H]`."""
    # The lower of plain and clipped: a ratio beyond the clip earns nothing more.
    ratio = log_ratio.exp()
    per_head = compute_per_head_advantages(advantages, active)
    surrogate = torch.minimum(ratio * per_head, ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio) * per_head)
    head_losses = -masked_mean(surrogate, active)
    return head_losses.sum(), head_losses


def value_loss(
    values: Tensor,
    targets: Tensor,
    valid: Tensor,
    *,
    kind: ValueLossType = "mse",
    huber_delta: float = 1.0,
    reference: Tensor | None = None,
    clip: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Half the squared error (or Huber's), and the error of each step before the mean.

    With `reference` the pessimistic maximum of the plain error and that of a prediction kept within ±`clip` of it.
    """
    errors = _value_errors(values, targets, kind, huber_delta)
    if reference is not None:
        kept = reference + (values - reference).clamp(-clip, clip)
        errors = torch.maximum(errors, _value_errors(kept, targets, kind, huber_delta))
    return masked_mean(errors.unsqueeze(-1), valid.unsqueeze(-1)).squeeze(-1), errors


def _value_errors(values: Tensor, targets: Tensor, kind: ValueLossType, huber_delta: float) -> Tensor:
    if kind == "huber":
        return F.huber_loss(values, targets, delta=huber_delta, reduction="none")
    return 0.5 * (values - targets).square()


def entropy_bonus(entropies: Tensor, active: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over heads of coefficient `[H]` times mean entropy, and those means `[H]`."""
    means = masked_mean(entropies, active)
    return (coefficients * means).sum(), means


def fewest_valid(spec: ActionSpec, selected: Tensor, active: Tensor) -> dict[str, Tensor | None]:
    """Per head a mask as restrictive as the tightest choice in the batch, or None if it never had a choice.

    `selected [..., H, K]`, `active [..., H]`; one host transfer for all heads.
    """
    valid = selected.sum(-1)
    counts = torch.where(active & (valid > 1), valid, spec.width + 1).flatten(0, -2).amin(0).tolist()
    return {
        head.name: torch.arange(head.size) < count if count <= head.size else None
        for head, count in zip(spec.heads, counts, strict=True)
    }


@torch.inference_mode()
def ratio_statistics(log_ratio: Tensor, active: Tensor, valid: Tensor, clip_ratio: float) -> dict[str, Tensor]:
    """How far the policy has moved, on one minibatch: `[]`, or `[H]` for heads. Nothing of it enters the loss.

    Per step and head k = (r - 1) - ln r, which is never negative and whose mean is the KL. The joint KL sums over
    heads, by the chain rule of a factored policy, and averages over steps; heads that did not matter add nothing.
    """
    ratio = log_ratio.exp()
    kl = log_ratio.expm1() - log_ratio  # unlike (ratio - 1), expm1 loses nothing when the ratio is close to 1
    clipped = active & ((ratio - 1.0).abs() > clip_ratio)
    return {
        "approx_kl": torch.where(active, kl, 0.0).sum() / valid.sum().clamp(min=1),
        "clip_fraction": clipped.sum() / active.sum().clamp(min=1),
        "ratio_max": ratio.max(),
        "ratio_min": ratio.min(),
        "ratios_finite": ratio.isfinite().all(),
        "head_kls": masked_mean(kl, active),
        "head_clip_fractions": masked_mean(clipped.to(ratio.dtype), active),
        "head_ratio_max": ratio.flatten(0, -2).amax(0),
        "head_ratio_min": ratio.flatten(0, -2).amin(0),
    }


VALUE_UNIT = "value"
TRUNK_UNIT = "trunk"


def parameter_units(network: RecurrentActorCritic) -> dict[str, list[nn.Parameter]]:
    """Parameters by the part they belong to: each policy head by name, `value`, and `trunk` for all that is shared."""
    units = {name: list(network.policy_head(name).parameters()) for name in network.spec.names}
    units[VALUE_UNIT] = list(network.value_head.parameters())
    in_heads = {id(parameter) for parameters in units.values() for parameter in parameters}
    units[TRUNK_UNIT] = [parameter for parameter in network.parameters() if id(parameter) not in in_heads]
    return units


def build_optimizer(
    network: RecurrentActorCritic, lr: float, weight_decay: float, head_lr_scale: Mapping[str, float]
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


def clip_policy_gradients(
    units: Mapping[str, list[nn.Parameter]], max_norm: float, mode: GradClipMode
) -> dict[str, Tensor]:
    """Clip each unit to `max_norm`, or all together, in place and without waiting for the device.

    Returns the norm of each unit `[U]` before clipping, and the total before and after.
    """
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
    after = torch.linalg.vector_norm(norms * factors)
    return {"grad_norms": norms, "total_grad_norm": total, "post_clip_grad_norm": after}


class ValueMemory:
    """The newest rounds, to which values are fitted again and again, while the policy learns from each of them once.

    What a decision brings is small beside the luck of an episode. A policy may only learn from what it has just done,
    but what came of a state stays true for longer: values that are fitted to several rounds average that luck out, and
    advantages that lean on them are less noisy. The policy shares its trunk with the values, so it is held where it is.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds: deque[SequenceBatch] = deque(maxlen=rounds)

    def __len__(self) -> int:
        return len(self._rounds)

    def remember(self, batch: SequenceBatch) -> int:
        """Keep a round, with its returns in raw units; returns how many sequences were left out as not finite.

        Kept, they would spoil a minibatch of every refit until the round is forgotten.
        """
        finite, left_out = batch.finite_rows()
        if finite is not None:
            self._rounds.append(finite)
        return left_out

    def refit(self, policy: Policy, lr: float, value_coef: float, num_minibatches: int) -> int:
        """One pass over every remembered round, in random order, with an optimiser of its own.

        Returns how many minibatches were skipped because the loss or a gradient was not finite.
        """
        skipped = 0
        optimizer = Adam(policy.network.parameters(), lr)
        # Where the policy is now, and is to stay.
        with torch.no_grad():
            befores = [policy.replay(batch).logits for batch in self._rounds]
        for number in torch.randperm(len(self._rounds)).tolist():
            batch, before = self._rounds[number], befores[number]
            for index in minibatches(batch.lengths, num_minibatches):
                part = batch.rows(index)
                loss = _refit_loss(policy, part, before[index, : part.obs.shape[1]], value_coef)
                skipped += not step_if_finite(optimizer, loss)
        optimizer.zero_grad(set_to_none=True)
        return skipped

    def state_dict(self) -> list[dict[str, Any]]:
        """Everything, as tensors and built-in types."""
        return [{spec.name: getattr(batch, spec.name) for spec in fields(batch)} for batch in self._rounds]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]], device: str) -> None:
        """Take over what another one saved."""
        self._rounds.extend(SequenceBatch(**batch).to(device) for batch in state)


def _refit_loss(policy: Policy, part: SequenceBatch, before: Tensor, value_coef: float) -> Tensor:
    """The value loss, and how far the policy has moved from the logits `before`, over the heads that mattered."""
    output = policy.replay(part)
    value, _ = value_loss(output.values, policy.scaled(part.returns), part.valid)
    legal = part.legal
    old, new = (
        torch.where(legal, select_logits(policy.spec, logits, part.actions), -torch.inf).log_softmax(-1)
        for logits in (before, output.logits)
    )
    moved = (old.exp() * (torch.where(legal, old, 0.0) - torch.where(legal, new, 0.0))).sum(-1)
    return value_coef * value + masked_mean(moved, part.active).sum()
