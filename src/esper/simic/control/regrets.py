"""What decisions cost, as somebody knows who knows the task, and a policy that learns to expect it.

Logits become expected costs in points, divided by a temperature: `-cost / TEMPERATURE`. Costs of what cannot be
told apart are means, so the least of them is the best decision without knowing more, which may be to wait.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from esper.leyline import Op
from esper.simic.control.action_masks import ActionSpec, Masks

TEMPERATURE = 0.5
"""Points of expected cost by which an action is e times less likely."""
_NEVER = -1e9
"""A logit of what is never drawn; finite, so that a head without any legal choice has no NaN."""


class Regrets(NamedTuple):
    """What decisions of Esper's heads cost against the best one, in points; what is not legal costs anything."""

    wait: Tensor
    """`[...]`"""
    germinate: Tensor
    """`[..., S, B, L]`"""
    fossilize: Tensor
    """`[..., S]`"""
    cull: Tensor
    """`[...]`: of culling whatever there is."""


def regret_loss(spec: ActionSpec, logits: Tensor, masks: Masks, regrets: Regrets) -> tuple[Tensor, Tensor]:
    """The loss `[...]` of conditional or plain logits as expected costs, and the regret `[...]` of deciding by them.

    A head expects the costs of its choices if the heads below it then choose what they expect least of. It learns from
    all legal choices, taken or not, so no branch has to be likely to be learned.
    """
    rows = {name: _rows(spec, logits, masks, name) for name in spec.names}
    legal = {name: masks[name].unsqueeze(-2) if name == "blend" else masks[name] for name in spec.names}
    legal["blend"] = legal["blend"].expand(rows["blend"].shape)
    best = {name: rows[name].detach().masked_fill(~legal[name], -torch.inf).argmax(-1, keepdim=True) for name in rows}
    # What each choice costs: blueprints and blends in every slot, then slots, then ops.
    germinate = regrets.germinate
    blueprint = germinate.gather(-1, best["blend"].unsqueeze(-2).expand(*germinate.shape[:-1], 1)).squeeze(-1)
    blend = germinate.gather(-2, best["blueprint"].unsqueeze(-1).expand(*germinate.shape[:-2], 1, germinate.shape[-1]))
    planting = blueprint.gather(-1, best["blueprint"]).squeeze(-1)
    alike = {Op.WAIT: regrets.wait, Op.CULL: regrets.cull}
    by_slot = {Op.GERMINATE: planting, Op.FOSSILIZE: regrets.fossilize}
    slot = torch.stack([by_slot[op] if op in by_slot else alike[op].unsqueeze(-1).expand_as(planting) for op in Op], -2)
    op = slot.gather(-1, best["slot"]).squeeze(-1)
    costs = {"slot": slot, "blueprint": blueprint, "blend": blend.squeeze(-2), "op": op}
    # Heads of plantings learn in the slots where one is legal, ops and slots wherever they are.
    plantable = masks["slot"][..., Op.GERMINATE, :].unsqueeze(-1)
    learnt = legal | {name: legal[name] & plantable for name in ("blueprint", "blend")}
    batch = regrets.wait.dim()
    losses = [_mean_error(rows[name], costs[name], learnt[name], batch) for name in spec.names]
    return torch.stack(losses).sum(0), op.gather(-1, best["op"]).squeeze(-1)


def expected_regret(spec: ActionSpec, logits: Tensor, masks: Masks, regrets: Regrets) -> Tensor:
    """The mean regret `[...]` of decisions that are drawn by conditional or plain logits."""
    chances = {}
    for name in spec.names:
        rows = _rows(spec, logits, masks, name)
        legal = masks[name].unsqueeze(-2) if name == "blend" else masks[name]
        # Where nothing is legal nothing is drawn.
        chances[name] = torch.where(legal, rows.masked_fill(~legal, _NEVER).softmax(-1), 0.0)
    slot, blueprint, blend, op = (chances[name] for name in ("slot", "blueprint", "blend", "op"))
    planting = torch.einsum("...sbl,...sb,...sl->...s", regrets.germinate, blueprint, blend)
    germinate = (slot[..., Op.GERMINATE, :] * planting).sum(-1)
    fossilize = (slot[..., Op.FOSSILIZE, :] * regrets.fossilize).sum(-1)
    of_op = {Op.WAIT: regrets.wait, Op.GERMINATE: germinate, Op.FOSSILIZE: fossilize, Op.CULL: regrets.cull}
    return (op * torch.stack([of_op[one] for one in Op], -1)).sum(-1)


def _rows(spec: ActionSpec, logits: Tensor, masks: Masks, name: str) -> Tensor:
    """The logits of a head: `[..., size]`, or `[..., given size, size]` if it is given another one."""
    head, index = spec.head(name), spec.names.index(name)
    if logits.dim() == masks["op"].dim() + 1:
        plain = logits[..., index, : head.size]
        given = 1 if head.given is None else spec.head(head.given).size
        return plain if head.given is None else plain.unsqueeze(-2).expand(*plain.shape[:-1], given, head.size)
    if head.given is None:
        return logits[..., index, 0, : head.size]
    return logits[..., index, : spec.head(head.given).size, : head.size]


def _mean_error(rows: Tensor, costs: Tensor, learnt: Tensor, batch: int) -> Tensor:
    """`[...]`: the mean squared error of expected costs over the choices to learn from, in points squared."""
    errors = torch.where(learnt, (TEMPERATURE * rows + costs).square(), 0.0)
    return errors.flatten(batch).sum(-1) / learnt.flatten(batch).sum(-1).clamp(min=1)
