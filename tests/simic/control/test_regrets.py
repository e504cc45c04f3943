"""Logits as expected costs: what deciding by them costs, and when there is nothing left to learn."""

import pytest
import torch
from torch import Tensor

from esper.leyline import HEAD_NAMES, Op
from esper.simic.control import Masks, draw_actions
from esper.simic.control.action_masks import pad_conditional
from esper.simic.control.regrets import TEMPERATURE, Regrets, expected_regret, regret_loss
from tests.simic.builders import ESPER_SPEC, random_masks

BATCH = 300
SLOTS, KINDS, BLENDS, OPS = (head.size for head in ESPER_SPEC.heads)


def random_regrets() -> Regrets:
    shapes = ((), (SLOTS, KINDS, BLENDS), (SLOTS,), ())
    return Regrets(*(4.0 * torch.rand(BATCH, *shape, dtype=torch.float64) for shape in shapes))


def cost_of(actions: Tensor, regrets: Regrets) -> Tensor:
    """What these joint actions cost, one at a time."""
    costs = []
    for row, (slot, kind, blend, op) in enumerate(actions.tolist()):
        of_op = {
            Op.WAIT: regrets.wait[row],
            Op.GERMINATE: regrets.germinate[row, slot, kind, blend],
            Op.FOSSILIZE: regrets.fossilize[row, slot],
            Op.CULL: regrets.cull[row],
        }
        costs.append(of_op[Op(op)])
    return torch.stack(costs)


@pytest.mark.parametrize("conditional", [False, True])
def test_the_regret_is_that_of_the_deterministic_decision(conditional: bool) -> None:
    torch.manual_seed(0)
    masks, regrets = random_masks(ESPER_SPEC, BATCH), random_regrets()
    rows = (ESPER_SPEC.given_width,) if conditional else ()
    logits = torch.randn(BATCH, len(HEAD_NAMES), *rows, ESPER_SPEC.width, dtype=torch.float64)
    actions = draw_actions(ESPER_SPEC, logits, masks, deterministic=True)
    _, regret = regret_loss(ESPER_SPEC, logits, masks, regrets)
    torch.testing.assert_close(regret, cost_of(actions, regrets))


@pytest.mark.parametrize("conditional", [False, True])
def test_the_expected_regret_is_the_mean_of_what_drawn_decisions_cost(conditional: bool) -> None:
    torch.manual_seed(0)
    masks, regrets = random_masks(ESPER_SPEC, 4), Regrets(*(part[:4] for part in random_regrets()))
    rows = (ESPER_SPEC.given_width,) if conditional else ()
    logits = torch.randn(4, len(HEAD_NAMES), *rows, ESPER_SPEC.width, dtype=torch.float64)
    expected = expected_regret(ESPER_SPEC, logits, masks, regrets)
    assert expected.isfinite().all()
    draws = 20_000
    many = {name: mask.repeat(draws, *[1] * (mask.dim() - 1)) for name, mask in masks.items()}
    actions = draw_actions(ESPER_SPEC, logits.repeat(draws, *[1] * (logits.dim() - 1)), many)
    table = torch.stack([_cost_table(regrets, row) for row in range(4)])
    hosts = torch.arange(4).repeat(draws)
    costs = table[hosts, actions[:, 0], actions[:, 1], actions[:, 2], actions[:, 3]].view(draws, 4)
    error = costs.std(0) / draws**0.5
    assert ((costs.mean(0) - expected).abs() < 5 * error + 1e-9).all()


def _cost_table(regrets: Regrets, row: int) -> Tensor:
    """What every joint action costs a host: `[S, B, L, O]`."""
    table = torch.empty(SLOTS, KINDS, BLENDS, OPS, dtype=torch.float64)
    table[..., Op.WAIT], table[..., Op.CULL] = regrets.wait[row], regrets.cull[row]
    table[..., Op.GERMINATE] = regrets.germinate[row]
    table[..., Op.FOSSILIZE] = regrets.fossilize[row][:, None, None]
    return table


def true_logits(regrets: Regrets, masks: Masks) -> Tensor:
    """Costs of plantings are made sums of one of the kind and one of the blend, so that both heads can be right."""
    by_kind, by_blend = regrets.germinate[..., 0], regrets.germinate[..., 0, :] - regrets.germinate[..., 0, :1]
    regrets.germinate.copy_(by_kind.unsqueeze(-1) + by_blend.unsqueeze(-2))
    kind = by_kind.masked_fill(~masks["blueprint"], torch.inf).argmin(-1, keepdim=True)
    blend = by_blend.masked_fill(~masks["blend"].unsqueeze(-2), torch.inf).argmin(-1, keepdim=True)
    kinds, blends = by_kind + by_blend.gather(-1, blend), by_kind.gather(-1, kind) + by_blend
    planting = kinds.gather(-1, kind).squeeze(-1)
    wait, cull = (part.unsqueeze(-1).expand(-1, SLOTS) for part in (regrets.wait, regrets.cull))
    slots = torch.stack([wait, planting, regrets.fossilize, cull], 1)
    ops = slots.masked_fill(~masks["slot"], torch.inf).amin(-1).nan_to_num(posinf=0.0).unsqueeze(1)
    ops[:, 0, Op.WAIT] = regrets.wait  # which needs no slot
    return pad_conditional(
        ESPER_SPEC,
        {
            name: -costs / TEMPERATURE
            for name, costs in {"slot": slots, "blueprint": kinds, "blend": blends, "op": ops}.items()
        },
    )


def test_expected_costs_that_are_true_leave_nothing_to_learn_and_decide_best() -> None:
    torch.manual_seed(1)
    masks, regrets = random_masks(ESPER_SPEC, BATCH), random_regrets()
    logits = true_logits(regrets, masks).requires_grad_()
    loss, regret = regret_loss(ESPER_SPEC, logits, masks, regrets)
    reached = masks["op"][:, Op.GERMINATE]  # elsewhere random masks may leave a slot without any kind
    torch.testing.assert_close(loss[reached], torch.zeros_like(loss[reached]))
    # No other legal decision is better.
    for _ in range(20):
        other = draw_actions(ESPER_SPEC, torch.randn_like(logits), masks)
        assert (regret <= cost_of(other, regrets) + 1e-9).all()


def test_plantings_are_learned_where_the_policy_waits() -> None:
    torch.manual_seed(2)
    regrets = random_regrets()
    logits = torch.zeros(BATCH, len(HEAD_NAMES), ESPER_SPEC.given_width, ESPER_SPEC.width, dtype=torch.float64)
    logits[:, HEAD_NAMES.index("op"), 0, Op.WAIT] = 50.0
    logits.requires_grad_()
    loss, _ = regret_loss(ESPER_SPEC, logits, ESPER_SPEC.all_legal((BATCH,)), regrets)
    loss.sum().backward()
    assert logits.grad is not None
    for head in ("slot", "blueprint", "blend"):
        assert (logits.grad[:, HEAD_NAMES.index(head), :SLOTS].abs().sum((1, 2)) > 0.01).all()


def test_what_is_not_legal_teaches_nothing() -> None:
    torch.manual_seed(3)
    masks, regrets = random_masks(ESPER_SPEC, BATCH), random_regrets()
    logits = torch.randn(BATCH, len(HEAD_NAMES), ESPER_SPEC.given_width, ESPER_SPEC.width, dtype=torch.float64)
    before = regret_loss(ESPER_SPEC, logits, masks, regrets)
    plantable = masks["slot"][:, Op.GERMINATE, :, None] & masks["blueprint"]
    regrets.germinate[~(plantable.unsqueeze(-1) & masks["blend"][:, None, None])] = 1e6
    regrets.fossilize[~masks["slot"][:, Op.FOSSILIZE]] = 1e6
    torch.testing.assert_close(regret_loss(ESPER_SPEC, logits, masks, regrets), before)
