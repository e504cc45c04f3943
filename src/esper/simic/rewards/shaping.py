"""Potential-based shaping: F = gamma · potential(next) - potential(current), which telescopes over an episode."""

import torch
from torch import Tensor

from esper.kasmina import SlotTable
from esper.simic.config.reward import RewardConfig, ShapingConfig
from esper.tolaria import Outcome


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
