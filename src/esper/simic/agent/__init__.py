"""The learner: a recurrent policy, the buffer of a round, and PPO."""

from esper.simic.agent.advantages import causal_masks, compute_per_head_advantages, generalized_advantages
from esper.simic.agent.checkpoint import CHECKPOINT_VERSION, load_checkpoint, save_checkpoint
from esper.simic.agent.network import Decision, FactoredRecurrentActorCritic, reset_hidden
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.rollout_buffer import TamiyoRolloutBuffer
from esper.simic.agent.types import (
    ActionDict,
    GradientStats,
    HeadEntropies,
    HeadLogProbs,
    Hidden,
    PPOUpdateMetrics,
    by_head,
)

__all__ = [
    "CHECKPOINT_VERSION",
    "ActionDict",
    "Decision",
    "FactoredRecurrentActorCritic",
    "GradientStats",
    "HeadEntropies",
    "HeadLogProbs",
    "Hidden",
    "PPOAgent",
    "PPOUpdateMetrics",
    "TamiyoRolloutBuffer",
    "by_head",
    "causal_masks",
    "compute_per_head_advantages",
    "generalized_advantages",
    "load_checkpoint",
    "reset_hidden",
    "save_checkpoint",
]
