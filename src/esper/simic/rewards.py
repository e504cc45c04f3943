"""What a step pays: the objective and its alternatives, shaping, and checks against seeds that game their credit.

`make_reward` puts a reward together; below it stand the families, each with its parts, then shaping and checks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.kasmina import SlotTable
from esper.leyline import DIVISION_GUARD, POINTS, InputError, Op, Stage, charge, objective, unknown_name
from esper.nissa import Hub
from esper.nissa.events import RansomwareSuspected, RewardHackingSuspected
from esper.simic.config.reward import (
    ChecksConfig,
    ContributionConfig,
    LossConfig,
    RewardConfig,
    RewardFamily,
    ShapingConfig,
    SparseConfig,
)
from esper.tasks import find_task
from esper.tolaria import Outcome, Situation

REWARD_LIMIT = 1e4
"""No component of a reward is larger than this in size, whatever it was computed from."""

Terms = dict[str, Tensor]
"""Name to `[N]`: what is paid or charged, and for what."""
SHAPING_TERMS = frozenset({"shaping", "cull_shaping"})
"""Components that guide and do not measure: the numerator of `shaped_reward_ratio`."""


@dataclass(frozen=True, slots=True)
class GamingFlags:
    """Which seeds look suspicious after a step; all fields are `[N, S]`."""

    ransomware: Tensor
    """The seed matters much to a network that is worse than before it came."""
    hacking: Tensor
    """The seed is credited with far more than the whole network has gained."""
    ratio: Tensor
    """Contribution / total improvement; NaN where it is not formed."""

    @property
    def any(self) -> Tensor:
        """Either of the two."""
        return self.ransomware | self.hacking


@dataclass(frozen=True, slots=True)
class RewardBreakdown:
    """What each of N hosts is paid in one step, and for what. Double precision, so that episodes sum up exactly."""

    components: Mapping[str, Tensor]
    """Name to `[N]`; they add up to `total`."""
    total: Tensor
    """`[N]`."""
    flags: GamingFlags

    @classmethod
    def of(cls, terms: Mapping[str, Tensor], scale: float, flags: GamingFlags) -> Self:
        """From terms `[N]`, each of which is made finite and then scaled."""
        scaled = {name: scale * bounded(term.double()) for name, term in terms.items()}
        components = {name: term.clamp(-REWARD_LIMIT, REWARD_LIMIT) for name, term in scaled.items()}
        return cls(components, torch.stack(list(components.values())).sum(0), flags)

    @property
    def shaped_reward_ratio(self) -> Tensor:
        """`[N]`, in [0, 1]: Σ|shaping terms| / Σ|all terms|, 0 where all terms are next to nothing."""
        sizes = {name: component.abs() for name, component in self.components.items()}
        everything = torch.stack(list(sizes.values())).sum(0)
        shaped = sum((size for name, size in sizes.items() if name in SHAPING_TERMS), torch.zeros_like(everything))
        paid = everything >= DIVISION_GUARD
        return torch.where(paid, shaped / torch.where(paid, everything, 1.0), 0.0).clamp(0.0, 1.0)


Reward = Callable[[Outcome], RewardBreakdown]
"""A pure function: the same outcome pays the same, and nothing is remembered between steps."""


def make_reward(config: RewardConfig | None = None, hub: Hub | None = None) -> Reward:
    """The reward that `config` describes; `hub` is told of seeds that look as if they were gaming their credit."""
    chosen = config or RewardConfig()

    def reward(outcome: Outcome) -> RewardBreakdown:
        flags = check_seeds(outcome, chosen.checks)
        if hub is not None and hub.listening:
            emit_flags(flags, outcome, hub)
        terms = _family_terms(outcome, flags, chosen)
        terms["governor"] = -chosen.governor_penalty * outcome.panicked.double()
        # Seeds that wait to be kept or culled, but for those of an epoch taken back.
        held = (outcome.after.table.stage == Stage.HOLDING).sum(1)
        terms["indecision"] = -chosen.holding_cost * torch.where(outcome.panicked, 0, held).double()
        terms["gaming"] = -chosen.checks.penalty * flags.any.sum(1).double()
        terms["shaping"] = shaping_term(outcome, chosen)
        return RewardBreakdown.of(terms, chosen.scale, flags)

    return reward


def _family_terms(outcome: Outcome, flags: GamingFlags, config: RewardConfig) -> Terms:
    match config.family:
        case RewardFamily.OBJECTIVE:
            return objective_terms(outcome)
        case RewardFamily.CONTRIBUTION:
            return contribution_terms(outcome, flags, config.contribution)
        case RewardFamily.SPARSE:
            return sparse_terms(outcome, config.sparse)
        case RewardFamily.LOSS:
            assert config.loss is not None  # the config refuses this
            return loss_terms(outcome, config.loss)


def bounded(term: Tensor) -> Tensor:
    """`term` made safe to pay: what cannot be known pays nothing, and nothing exceeds ±`REWARD_LIMIT`."""
    return torch.where(term.isfinite(), term, 0.0).clamp(-REWARD_LIMIT, REWARD_LIMIT)


def objective_terms(outcome: Outcome) -> Terms:
    """The change of the objective, as gain in quality minus growth of the rent; sums to `J_end - J_start`."""
    score = torch.where(outcome.ended, outcome.final_score, outcome.after.score).double()
    return {"quality": score - outcome.before.score.double(), **rents_saved(outcome)}


def sparse_terms(outcome: Outcome, config: SparseConfig) -> Terms:
    """The objective of the committed network at the last step, cut to [-1, 1] and then scaled; 0 before."""
    base = final_objective(outcome).clamp(-1.0, 1.0)
    return {"sparse": torch.where(outcome.ended, config.sparse_reward_scale * base, 0.0)}


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


def rents_now(situation: Situation) -> Terms:
    """The rent of all seeds at their alpha, `[N]` each: of their parameters, and of their FLOPs."""
    alpha = situation.table.alpha.double()
    params, flops = ((alpha * amount).sum(1) for amount in (situation.table.params, situation.planted_flops))
    return _rents(situation, params, flops)


def rents_saved(outcome: Outcome) -> Terms:
    """How much less rent is owed after a step than before; at the end, that of the committed network is owed."""
    before, after = rents_now(outcome.before), rents_now(outcome.after)
    committed = _rents(outcome.after, outcome.final_params.double(), outcome.final_flops.double())
    return {name: before[name] - torch.where(outcome.ended, committed[name], after[name]) for name in before}


def _rents(situation: Situation, params: Tensor, flops: Tensor) -> Terms:
    return {
        "rent": charge(params, situation.host_params, situation.price.double()),
        "flop_rent": charge(flops, situation.host_flops, situation.flop_price),
    }


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


def loss_potential(loss: Tensor, config: LossConfig) -> Tensor:
    """`[N]`: minus the loss in typical deltas, no worse than that of the worst loss; not measured is the baseline."""
    known = torch.where(loss.isnan(), config.baseline_loss, loss.double())
    return -known.clamp(max=config.worst_loss) / config.typical_delta


LOSS_CONFIGS: Mapping[str, LossConfig] = MappingProxyType(
    {
        task: LossConfig.of_classes(find_task(task).classes, best_loss, typical_delta=0.1)
        for task, best_loss in (("cifar10", 0.3), ("tinystories", 1.5))
    }
)
"""Tasks that need no facts given: what is known by training on them, and the loss of guessing, which they know."""


def loss_config(task: str, facts: LossConfig | None = None) -> LossConfig:
    """`facts` if given, else those known of `task`."""
    if facts is not None:
        return facts
    if task not in LOSS_CONFIGS:
        raise InputError(f"{unknown_name('task for the loss reward', task, LOSS_CONFIGS)}, or give its facts")
    return LOSS_CONFIGS[task]


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


def _ratio_penalty(flags: GamingFlags, config: ContributionConfig) -> Tensor:
    """`[N, S]`, 0 or negative."""
    excess = (flags.ratio - config.ratio_limit).nan_to_num(0.0).clamp(min=0.0)
    return -(config.ratio_weight * excess).clamp(max=config.ratio_cap)


def shaping_term(outcome: Outcome, config: RewardConfig) -> Tensor:
    """`[N]`: the shaping of one step.

    Behind a true end there is nothing to look forward to, so its potential is 0. A truncated end keeps the
    potential of what it cut off, unless the horizon is the end of the problem.
    """
    over = outcome.ended if config.horizon_is_terminal else outcome.terminated
    ahead = torch.where(over, 0.0, potential(outcome.after.table, config.shaping))
    return config.gamma * ahead - potential(outcome.before.table, config.shaping)


def potential(table: SlotTable, config: ShapingConfig) -> Tensor:
    """`[N]`: how far the seeds of each host have come, from stages and epochs in them, summed over slots."""
    by_stage = torch.tensor(config.stages, dtype=torch.float64)[table.stage]
    age = table.epochs_in_stage.clamp(max=config.max_epochs).double()
    return config.weight * (by_stage + torch.where(table.occupied, config.per_epoch * age, 0.0)).sum(1)


def check_seeds(outcome: Outcome, config: ChecksConfig) -> GamingFlags:
    """Both checks for every seed of every host."""
    judged = judged_seeds(outcome)
    table = outcome.after.table
    contribution = torch.where(judged, POINTS * table.contribution.double(), torch.nan)
    improvement = POINTS * table.improvement.double()
    # In points; no ratio is formed unless the improvement is safely above 0.
    formed = improvement > max(config.improvement_safe_threshold, DIVISION_GUARD)
    ratio = torch.where(formed, contribution / torch.where(formed, improvement, 1.0), torch.nan)
    return GamingFlags(
        _check_ransomware_signature(contribution, improvement, config),
        _check_reward_hacking(contribution, ratio, config),
        ratio,
    )


def judged_seeds(outcome: Outcome) -> Tensor:
    """`[N, S]` bool: seeds that the last epoch showed something of; a rolled-back epoch shows nothing."""
    return outcome.after.table.occupied & ~outcome.panicked[:, None]


def _check_ransomware_signature(contribution: Tensor, improvement: Tensor, config: ChecksConfig) -> Tensor:
    """`[N, S]` bool: high contribution in points, yet the whole has become worse."""
    return (contribution > config.ransomware_contribution) & (improvement < -config.ransomware_harm)


def _check_reward_hacking(contribution: Tensor, ratio: Tensor, config: ChecksConfig) -> Tensor:
    """`[N, S]` bool: contribution far above the total improvement."""
    return (contribution > config.hacking_contribution) & (ratio > config.hacking_ratio)


def emit_flags(flags: GamingFlags, outcome: Outcome, hub: Hub) -> None:
    """Tell `hub` of every flagged seed."""
    after = outcome.after
    for suspicion, flagged in ((RansomwareSuspected, flags.ransomware), (RewardHackingSuspected, flags.hacking)):
        for host, slot in flagged.nonzero().tolist():
            ratio = float(flags.ratio[host, slot])
            payload = suspicion(
                epoch=int(after.signals.epoch[host]),
                contribution=POINTS * float(after.table.contribution[host, slot]),
                total_improvement=POINTS * float(after.table.improvement[host, slot]),
                ratio=None if ratio != ratio else ratio,
            )
            hub.tell(payload, env_id=host, slot_id=after.sites[slot].slot_id)
