"""The terms of the families *objective*, *sparse* and *loss*: functions from an outcome to named `[N]` tensors."""

import torch
from torch import Tensor

from esper.leyline import objective, rent
from esper.simic.rewards.config import LossConfig, SparseConfig
from esper.tolaria import Outcome, Situation

Terms = dict[str, Tensor]


def blended_params(situation: Situation) -> Tensor:
    """`[N]`: parameters of all seeds, each counted at its alpha."""
    return (situation.table.alpha.double() * situation.table.params).sum(1)


def rent_now(situation: Situation) -> Tensor:
    """`[N]`: the rent of all seeds at their alpha."""
    return rent(blended_params(situation), situation.host_params, situation.price.double())


def rent_after(outcome: Outcome) -> Tensor:
    """`[N]`: the rent after a step; at the end that of the committed network."""
    after = outcome.after
    committed = rent(outcome.final_params.double(), after.host_params, after.price.double())
    return torch.where(outcome.ended, committed, rent_now(after))


def final_objective(outcome: Outcome) -> Tensor:
    """`[N]`: the objective of the committed network; means something at the end alone."""
    after = outcome.after
    price = after.price.double()
    return objective(outcome.final_score.double(), outcome.final_params.double(), after.host_params, price)


def objective_terms(outcome: Outcome) -> Terms:
    """The change of the objective, as gain in quality minus growth of the rent; sums to `J_end - J_start`."""
    score = torch.where(outcome.ended, outcome.final_score, outcome.after.score).double()
    return {
        "quality": score - outcome.before.score.double(),
        "rent": rent_now(outcome.before) - rent_after(outcome),
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
        "rent": config.deltas_per_quality * (rent_now(outcome.before) - rent_after(outcome)),
    }
