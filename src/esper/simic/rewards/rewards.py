"""From an outcome to what it pays: the one place where families, shaping and checks meet."""

from collections.abc import Callable

import torch
from torch import Tensor

from esper.leyline import Stage
from esper.simic.config.reward import RewardConfig, RewardFamily
from esper.simic.rewards.breakdown import RewardBreakdown
from esper.simic.rewards.checks import GamingFlags, check_seeds
from esper.simic.rewards.contribution import contribution_terms
from esper.simic.rewards.shaping import shaping_term
from esper.simic.rewards.terms import Terms, loss_terms, objective_terms, sparse_terms
from esper.tolaria import Outcome

Reward = Callable[[Outcome], RewardBreakdown]
"""A pure function: the same outcome pays the same, and nothing is remembered between steps."""


def make_reward(config: RewardConfig | None = None) -> Reward:
    """The reward that `config` describes."""
    chosen = config or RewardConfig()

    def reward(outcome: Outcome) -> RewardBreakdown:
        flags = check_seeds(outcome, chosen.checks)
        terms = _family_terms(outcome, flags, chosen)
        terms["governor"] = -chosen.governor_penalty * outcome.panicked.double()
        terms["indecision"] = -chosen.holding_cost * _held_seeds(outcome)
        terms["gaming"] = -chosen.checks.penalty * flags.any.sum(1).double()
        terms["shaping"] = shaping_term(outcome, chosen)
        return RewardBreakdown.of(terms, chosen.scale, flags)

    return reward


def _held_seeds(outcome: Outcome) -> Tensor:
    """`[N]`: seeds that wait to be kept or culled, but for those of an epoch taken back."""
    held = (outcome.after.table.stage == Stage.HOLDING).sum(1)
    return torch.where(outcome.panicked, 0, held).double()


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
