"""The terms of every family, and of shaping: functions from an outcome to named `[N]` tensors."""

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.kasmina import SlotTable
from esper.leyline import DIVISION_GUARD, POINTS, REWARD_LIMIT, Op, Stage, charge, objective
from esper.simic.config.reward import ContributionConfig, LossConfig, RewardConfig, ShapingConfig, SparseConfig
from esper.simic.rewards.checks import GamingFlags, judged_seeds
from esper.tolaria import Outcome, Situation

Terms = dict[str, Tensor]


def rents_now(situation: Situation) -> Terms:
    """The rent of all seeds at their alpha, `[N]` each: of their parameters, and of their FLOPs."""
    alpha = situation.table.alpha.double()
    params, flops = ((alpha * amount).sum(1) for amount in (situation.table.params, situation.planted_flops))
    return _rents(situation, params, flops)


def _rents(situation: Situation, params: Tensor, flops: Tensor) -> Terms:
    return {
        "rent": charge(params, situation.host_params, situation.price.double()),
        "flop_rent": charge(flops, situation.host_flops, situation.flop_price),
    }


def rents_saved(outcome: Outcome) -> Terms:
    """How much less rent is owed after a step than before; at the end, that of the committed network is owed."""
    before, after = rents_now(outcome.before), rents_now(outcome.after)
    committed = _rents(outcome.after, outcome.final_params.double(), outcome.final_flops.double())
    return {name: before[name] - torch.where(outcome.ended, committed[name], after[name]) for name in before}


def final_objective(outcome: Outcome) -> Tensor:
    """`[N]`: the objective of the committed network; means something at the end alone."""
    after = outcome.after
    return objective(
        outcome.final_score.double(),
        outcome.final_params.double(),
        after.host_params,
        after.price.double(),
        outcome.final_flops.double(),
        after.host_flops,
        after.flop_price,
    )


def objective_terms(outcome: Outcome) -> Terms:
    """The change of the objective, as gain in quality minus growth of the rent; sums to `J_end - J_start`."""
    score = torch.where(outcome.ended, outcome.final_score, outcome.after.score).double()
    return {
        "quality": score - outcome.before.score.double(),
        **rents_saved(outcome),
    }


def sparse_terms(outcome: Outcome, config: SparseConfig) -> Terms:
    """The objective of the committed network at the last step, cut to [-1, 1] and then scaled; 0 before."""
    base = final_objective(outcome).clamp(-1.0, 1.0)
    return {"sparse": torch.where(outcome.ended, config.sparse_reward_scale * base, 0.0)}


def loss_potential(loss: Tensor, config: LossConfig) -> Tensor:
    """`[N]`: minus the loss in typical deltas, no worse than that of the worst loss; not measured is the baseline."""
    known = torch.where(loss.isnan(), config.baseline_loss, loss.double())
    return -known.clamp(max=config.worst_loss) / config.typical_delta


def loss_terms(outcome: Outcome, config: LossConfig) -> Terms:
    """The fall of the validation loss in typical deltas, minus the growth of the rent in the same unit.

    Both are differences of a potential, so an episode is paid the fall from the baseline to the committed network,
    whatever the loss did on the way. A limit on single steps would break that: large rises would cost less than the
    small falls that follow them pay.
    """
    after = torch.where(outcome.ended, outcome.final_loss, outcome.after.signals.val_loss)
    return {
        "loss_drop": loss_potential(after, config) - loss_potential(outcome.before.signals.val_loss, config),
        **{name: config.deltas_per_quality * saved for name, saved in rents_saved(outcome).items()},
    }


def bounded(term: Tensor) -> Tensor:
    """`term` made safe to pay: what cannot be known pays nothing, and nothing exceeds ±`REWARD_LIMIT`."""
    return torch.where(term.isfinite(), term, 0.0).clamp(-REWARD_LIMIT, REWARD_LIMIT)


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


def potential(table: SlotTable, config: ShapingConfig) -> Tensor:
    """`[N]`: how far the seeds of each host have come, from stages and epochs in them, summed over slots."""
    by_stage = torch.tensor(config.stages, dtype=torch.float64)[table.stage]
    age = table.epochs_in_stage.clamp(max=config.max_epochs).double()
    return config.weight * (by_stage + torch.where(table.occupied, config.per_epoch * age, 0.0)).sum(1)


def shaping_term(outcome: Outcome, config: RewardConfig) -> Tensor:
    """`[N]`: the shaping of one step.

    Behind a true end there is nothing to look forward to, so its potential is 0. A truncated end keeps the
    potential of what it cut off, unless the horizon is the end of the problem.
    """
    over = outcome.ended if config.horizon_is_terminal else outcome.terminated
    ahead = torch.where(over, 0.0, potential(outcome.after.table, config.shaping))
    return config.gamma * ahead - potential(outcome.before.table, config.shaping)
