"""The terms of the families *objective*, *sparse* and *loss*: functions from an outcome to named `[N]` tensors."""

import torch
from torch import Tensor

from esper.leyline import charge, objective
from esper.simic.config.reward import LossConfig, SparseConfig
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
