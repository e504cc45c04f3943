"""What an observation space and an `info` hold, for one host and for many."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from esper.api.gym.actions import joint_mask
from esper.kasmina import ActionMasks
from esper.leyline import HEAD_NAMES
from esper.simic.control import observation_layout
from esper.tolaria import Outcome

Info = dict[str, Any]


def observation_space(num_slots: int) -> spaces.Box:
    columns = [placed.column for placed in observation_layout(num_slots)]
    low, high = (np.array([getattr(column, end) for column in columns], dtype=np.float32) for end in ("low", "high"))
    return spaces.Box(low, high, dtype=np.float32)


def mask_info(masks: ActionMasks) -> Info:
    """`masks`: by head, conditional ones included; `action_mask [N, A]`: which of the `joint_actions` are legal."""
    return {
        "masks": {name: getattr(masks, name).numpy().copy() for name in HEAD_NAMES},
        "action_mask": joint_mask(masks).numpy(),
    }


def end_info(outcome: Outcome) -> dict[str, NDArray[Any]]:
    """`[N]` each: the network that an export would give; it means something where an episode has ended."""
    after = outcome.after
    score, added, flops = outcome.final_score.double(), outcome.final_params, outcome.final_flops
    return {
        "objective": (score - after.rent(added.double(), flops.double())).numpy(),
        "val_score": score.numpy(),
        "parameters": (after.host_params + added).numpy(),
        "added_parameters": added.numpy().copy(),
        "added_flops": flops.numpy().copy(),
    }
