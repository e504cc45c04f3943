"""What a step pays: the objective and its alternatives, shaping, and checks against seeds that game their credit."""

from esper.simic.config.reward import (
    INTERVENTION_COSTS,
    ChecksConfig,
    ContributionConfig,
    LossConfig,
    RewardConfig,
    RewardFamily,
    ShapingConfig,
    SparseConfig,
    check_gammas,
    check_learner,
)
from esper.simic.rewards.checks import GamingFlags, check_seeds, emit_flags
from esper.simic.rewards.loss_facts import LOSS_CONFIGS, loss_config
from esper.simic.rewards.rewards import SHAPING_TERMS, Reward, RewardBreakdown, make_reward
from esper.simic.rewards.terms import potential, shaping_term

__all__ = [
    "INTERVENTION_COSTS",
    "LOSS_CONFIGS",
    "SHAPING_TERMS",
    "ChecksConfig",
    "ContributionConfig",
    "GamingFlags",
    "LossConfig",
    "Reward",
    "RewardBreakdown",
    "RewardConfig",
    "RewardFamily",
    "ShapingConfig",
    "SparseConfig",
    "check_gammas",
    "check_learner",
    "check_seeds",
    "emit_flags",
    "loss_config",
    "make_reward",
    "potential",
    "shaping_term",
]
