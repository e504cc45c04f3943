"""How often masking left a head less than its full choice."""

import torch
from torch import Tensor

from esper.simic.control.action_spec import ActionSpec


def mask_hit_rates(spec: ActionSpec, selected: Tensor, active: Tensor) -> dict[str, float]:
    """Per head, the share of its decisions in which masking removed at least one option; 0 if it never decided.

    `selected [..., H, K]` as from `select_masks`, `active [..., H]`: the head decided.
    """
    sizes = torch.tensor([head.size for head in spec.heads], device=selected.device)
    hits = (active & (selected.sum(-1) < sizes)).flatten(0, -2).sum(0)
    decisions = active.flatten(0, -2).sum(0)
    return dict(zip(spec.names, (hits / decisions.clamp(min=1)).tolist(), strict=True))
