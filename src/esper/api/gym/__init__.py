"""The growth environment as Gymnasium knows environments: `esper/Growth-v0`, one host or many."""

from esper.api.gym.single import GrowthGymEnv
from esper.api.gym.spaces import ActionCoding, joint_actions, joint_mask
from esper.api.gym.vector import GrowthVectorEnv

__all__ = ["ActionCoding", "GrowthGymEnv", "GrowthVectorEnv", "joint_actions", "joint_mask"]
