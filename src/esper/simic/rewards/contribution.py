"""The terms of the *contribution* family, in points: what seeds contribute, with discounts, costs and penalties."""

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.leyline import DIVISION_GUARD, POINTS, Op, Stage
from esper.simic.config.reward import ContributionConfig
from esper.simic.rewards.breakdown import bounded
from esper.simic.rewards.checks import GamingFlags, judged_seeds
from esper.simic.rewards.terms import Terms, final_objective, rents_now
from esper.tolaria import Outcome


def attribution_discount(contribution: Tensor, improvement: Tensor) -> Tensor:
    """In [0, 1]: 1 where the total improvement supports the contribution, falling smoothly to 0 where there is none.

    A contribution that is not positive is no credit, so there is nothing to discount.
    """
    credited = contribution > DIVISION_GUARD
    support = (improvement / torch.where(credited, contribution, 1.0)).nan_to_num(0.0).clamp(0.0, 1.0)
    return torch.where(credited, support.square() * (3.0 - 2.0 * support), 1.0)


def legitimacy_discount(epochs_in_holding: Tensor, full_after: int) -> Tensor:
    """In [0, 1]: rises by equal steps with the epochs in HOLDING to 1 at `full_after`."""
    return ((1.0 + epochs_in_holding.double()) / (1.0 + full_after)).clamp(0.0, 1.0)


def holding_penalty(epochs_in_holding: Tensor, config: ContributionConfig) -> Tensor:
    """What an epoch of indecision is charged, 0 or negative: free at first, then linear up to a cap."""
    late = epochs_in_holding.double() - config.holding_start
    charge = (config.holding_penalty + config.holding_step * late).clamp(max=config.holding_cap)
    return torch.where(late >= 0, -charge, 0.0)


def cull_shaping(contribution: Tensor, config: ContributionConfig) -> Tensor:
    """Culling a seed that took points away pays, culling one that gave them is charged, both within the bound."""
    return bounded(-config.cull_weight * contribution).clamp(-config.cull_bound, config.cull_bound)


def _credit(outcome: Outcome, flags: GamingFlags, config: ContributionConfig) -> tuple[Tensor, Tensor]:
    """Credit for measured contributions and for unmeasured ones by proxy, both `[N, S]`.

    At alpha 0 a contribution is known to be 0 without a counterfactual, which says nothing about the seed: until it has
    been measured once, the gain of the whole network stands in.
    """
    table, judged = outcome.after.table, judged_seeds(outcome)
    limit = config.contribution_limit
    contribution = POINTS * table.contribution.double()
    measured = contribution.isfinite() & (table.measurements > 0)
    discount = attribution_discount(contribution, POINTS * table.improvement.double())
    factor = torch.where(flags.ransomware, -config.ransomware_factor, discount)
    credit = config.weight * factor * contribution.clamp(-limit, limit)
    gain = POINTS * (outcome.after.score.double() - outcome.before.score.double())
    proxy = config.proxy * bounded(gain).clamp(-limit, limit)[:, None].expand(table.shape)
    return torch.where(judged & measured, credit, 0.0), torch.where(judged & ~measured, proxy, 0.0)


def _ratio_penalty(flags: GamingFlags, config: ContributionConfig) -> Tensor:
    """`[N, S]`, 0 or negative."""
    excess = (flags.ratio - config.ratio_limit).nan_to_num(0.0).clamp(min=0.0)
    return -(config.ratio_weight * excess).clamp(max=config.ratio_cap)


def contribution_terms(outcome: Outcome, flags: GamingFlags, config: ContributionConfig) -> Terms:
    """All terms, each `[N]`; what a rolled-back epoch undid is neither paid nor charged, the op itself is."""
    before, after = outcome.before.table, outcome.after.table
    slot, _, _, op = outcome.actions.unbind(1)
    chosen = F.one_hot(slot, after.shape[1]).bool() & ~outcome.panicked[:, None]
    kept, culled = (chosen & (op == kind)[:, None] for kind in (Op.FOSSILIZE, Op.CULL))

    known = bounded(POINTS * before.contribution.double())
    supported = attribution_discount(known, POINTS * before.improvement.double())
    bonus = config.fossilize_bonus * known.clamp(0.0, config.contribution_limit) * supported
    bonus = bonus * legitimacy_discount(before.epochs_in_stage, config.legitimacy_epochs)
    credit, proxy = _credit(outcome, flags, config)
    waiting = (after.stage == Stage.HOLDING) & ~outcome.panicked[:, None]
    costs = torch.tensor([config.intervention_costs[kind] for kind in Op], dtype=torch.float64)
    return {
        "contribution": credit.sum(1),
        "proxy": proxy.sum(1),
        "ratio_penalty": _ratio_penalty(flags, config).sum(1),
        "fossilize_bonus": torch.where(kept, bonus, 0.0).sum(1),
        "intervention": -costs[op],
        "holding": torch.where(waiting, holding_penalty(after.epochs_in_stage, config), 0.0).sum(1),
        "cull_shaping": torch.where(culled, cull_shaping(known, config), 0.0).sum(1),
        **{name: -config.rent_weight * POINTS * owed for name, owed in rents_now(outcome.after).items()},
        "end": torch.where(outcome.ended, config.end_weight * POINTS * final_objective(outcome), 0.0),
    }
