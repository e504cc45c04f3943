"""What the controller may do and how its inputs are scaled: action specs, masked distributions, normalisers."""

from esper.leyline import InvalidStateMachineError
from esper.simic.control.action_masks import MaskedCategorical, draw_actions, relevant_heads, select_masks
from esper.simic.control.action_spec import ActionSpec, Head, Masks, esper_action_spec
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
    "draw_actions",
    "esper_action_spec",
    "joint_entropy",
    "joint_kl",
    "relevant_heads",
    "select_masks",
]
