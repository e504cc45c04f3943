"""Which step and head is credited with what.

The decider (op) causes everything that follows, so it takes the full advantage. A head that did not matter for the
sampled decision had no effect on what came next: slot under WAIT, blueprint and blend under anything but GERMINATE.
Crediting it would be noise, so its advantage is 0 and it is left out of every mean. `causal_masks` is the one place
that says which heads count; policy loss, entropy, KL and metrics all use its result.
"""

import torch
from torch import Tensor

from esper.leyline import ADVANTAGE_STD_FLOOR
from esper.simic.control.action_masks import relevant_heads
from esper.simic.control.action_spec import ActionSpec


def causal_masks(spec: ActionSpec, actions: Tensor, valid: Tensor) -> Tensor:
    """`[..., H]`, True where a head mattered at a real step: `actions [..., H]`, `valid [...]`."""
    return relevant_heads(spec, actions) & valid.unsqueeze(-1)


def compute_per_head_advantages(advantages: Tensor, active: Tensor) -> Tensor:
    """`advantages [...]` for every head that counts and 0 for the others: `[..., H]`."""
    return torch.where(active, advantages.unsqueeze(-1), 0.0)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def generalized_advantages(
    rewards: Tensor, values: Tensor, next_values: Tensor, ends: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """Generalised advantage estimates `[N, T]`, all arguments `[N, T]`.

    `next_values` is what the step is bootstrapped with: 0 at a terminal step, V of the state after the step at a
    truncated or last one. `ends` is True where the sum over later steps is cut, whatever the reason.
    """
    deltas = rewards + gamma * next_values - values
    carry = gamma * gae_lambda * (~ends).to(deltas.dtype)
    advantages = torch.empty_like(deltas)
    running = torch.zeros_like(deltas[:, 0])
    for step in range(deltas.shape[1] - 1, -1, -1):
        # `where` and not a product: beyond an end there may be stale numbers, and 0 times NaN is NaN.
        running = deltas[:, step] + torch.where(ends[:, step], 0.0, carry[:, step] * running)
        advantages[:, step] = running
    return advantages


def standardize(advantages: Tensor, valid: Tensor) -> Tensor:
    """Zero mean and unit spread over all valid steps together; a tiny spread is not blown up to 1."""
    if not valid.any():
        return advantages
    chosen = advantages[valid]
    spread = chosen.std(correction=0).clamp(min=ADVANTAGE_STD_FLOOR)
    return torch.where(valid, (advantages - chosen.mean()) / spread, advantages)
