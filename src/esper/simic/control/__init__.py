"""What the controller sees and may do: observations, action specs, masked distributions, normalisers."""

from esper.leyline import InvalidStateMachineError
from esper.simic.control.action_masks import (
    ActionSpec,
    Head,
    MaskedCategorical,
    Masks,
    draw_actions,
    esper_action_spec,
    relevant_heads,
    select_logits,
    select_masks,
)
from esper.simic.control.features import (
    TaskConfig,
    compute_action_mask,
    describe_observation,
    normalize_observation,
    obs_to_base_features,
    obs_to_base_features_tensor,
    observation_layout,
    observation_width,
    price_feature,
    safe,
    signals_to_features,
)
from esper.simic.control.joint import joint_entropy, joint_kl
from esper.simic.control.normalization import RewardNormalizer, RunningMeanStd

__all__ = [
    "ActionSpec",
    "Head",
    "InvalidStateMachineError",
    "MaskedCategorical",
    "Masks",
    "RewardNormalizer",
    "RunningMeanStd",
    "TaskConfig",
    "compute_action_mask",
    "describe_observation",
    "draw_actions",
    "esper_action_spec",
    "joint_entropy",
    "joint_kl",
    "normalize_observation",
    "obs_to_base_features",
    "obs_to_base_features_tensor",
    "observation_layout",
    "observation_width",
    "price_feature",
    "relevant_heads",
    "safe",
    "select_logits",
    "select_masks",
    "signals_to_features",
]
