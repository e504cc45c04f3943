"""The learner: a recurrent policy, the buffer of a round, and PPO."""

from esper.simic.agent.checkpoint import CHECKPOINT_VERSION, load_checkpoint, save_checkpoint
from esper.simic.agent.network import FactoredRecurrentActorCritic, Policy
from esper.simic.agent.optimization import compute_per_head_advantages
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.rollout_buffer import (
    TamiyoRolloutBuffer,
    causal_masks,
    generalized_advantages,
)
from esper.simic.agent.types import (
    ActionDict,
    GradientStats,
    HeadEntropies,
    HeadLogProbs,
    Hidden,
    PolicyStep,
    PPOUpdateMetrics,
)

__all__ = [
    "CHECKPOINT_VERSION",
    "ActionDict",
    "FactoredRecurrentActorCritic",
    "GradientStats",
    "HeadEntropies",
    "HeadLogProbs",
    "Hidden",
    "PPOAgent",
    "PPOUpdateMetrics",
    "Policy",
    "PolicyStep",
    "TamiyoRolloutBuffer",
    "causal_masks",
    "compute_per_head_advantages",
    "generalized_advantages",
    "load_checkpoint",
    "save_checkpoint",
]
