"""What Gymnasium is shown of the hosts: spaces of actions and observations, and what an `info` holds.

An action is four numbers, or one number for each action that means something of its own.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from esper.kasmina import ActionMasks, num_blueprints
from esper.leyline import HEAD_NAMES, NUM_BLENDS, NUM_OPS, InputError, Op
from esper.simic.control import observation_layout
from esper.tolaria import Outcome

Info = dict[str, Any]
Space = spaces.MultiDiscrete | spaces.Discrete[np.int64]


def joint_actions(num_slots: int) -> Tensor:
    """`[A, 4]`: every action that differs from all others; columns as in `actions [N, 4]`, WAIT first.

    Heads that do not matter for an op are 0, so A = 1 + S·B·L + 2·S, and not S·B·L·O. B is the number of blueprints.
    """
    return _joint_actions(num_slots, num_blueprints())


@cache
def _joint_actions(num_slots: int, blueprints: int) -> Tensor:
    seeds = torch.cartesian_prod(torch.arange(num_slots), torch.arange(blueprints), torch.arange(NUM_BLENDS))
    slots = torch.zeros((num_slots, 3), dtype=torch.int64)
    slots[:, 0] = torch.arange(num_slots)
    heads = {Op.WAIT: slots[:1], Op.GERMINATE: seeds, Op.FOSSILIZE: slots, Op.CULL: slots}
    return torch.cat([torch.nn.functional.pad(rows, (0, 1), value=int(op)) for op, rows in heads.items()])


def joint_mask(masks: ActionMasks) -> Tensor:
    slot, blueprint, blend, op = _joint_actions(*masks.blueprint.shape[1:]).unbind(1)
    seedable = masks.blueprint[:, slot, blueprint] & masks.blend[:, blend]
    return masks.slot[:, op, slot] & (seedable | (op != Op.GERMINATE))


class ActionCoding:
    """Between the actions of a Gymnasium space and `actions [N, 4]` for a host with so many slots.

    | flat | space of one host | an action is |
    |---|---|---|
    | False | `MultiDiscrete([S, B, L, O])` | slot, blueprint, blend, op; what does not matter for the op is ignored |
    | True | `Discrete(A)` | a row of `joint_actions` |
    """

    def __init__(self, num_slots: int, *, flat: bool) -> None:
        self.flat = flat
        self._joint = joint_actions(num_slots)
        sizes = [num_slots, num_blueprints(), NUM_BLENDS, NUM_OPS]
        self.space: Space = spaces.Discrete(len(self._joint)) if flat else spaces.MultiDiscrete(sizes)

    def decode(self, actions: NDArray[np.integer], masks: ActionMasks) -> tuple[Tensor, Tensor]:
        """`actions` of N hosts as `[N, 4]`, those that are not legal replaced by WAIT, and which those are, `[N]`."""
        wanted = torch.as_tensor(np.asarray(actions), dtype=torch.int64)
        shape = (len(masks.op),) if self.flat else (len(masks.op), self._joint.shape[1])
        if wanted.shape != shape:
            raise InputError(f"actions must have shape {shape}; got {tuple(wanted.shape)}")
        heads = self._unflattened(wanted) if self.flat else _without_irrelevant(wanted)
        illegal = ~masks.allow(heads)
        return torch.where(illegal[:, None], 0, heads), illegal

    def _unflattened(self, wanted: Tensor) -> Tensor:
        known = (wanted >= 0) & (wanted < len(self._joint))
        # What the space does not hold becomes an action that no mask allows.
        return torch.where(known[:, None], self._joint[wanted.where(known, 0)], -1)

    def learner_mask(self, masks: ActionMasks) -> NDArray[np.bool_]:
        """What sb3-contrib calls action masks: `[N, A]` if flat, or else the masks of the four heads side by side.

        The masks of four separate heads cannot say that one choice depends on another: they allow all that is legal,
        and more. A flat mask is exact.
        """
        if self.flat:
            return _to_numpy(joint_mask(masks))
        blueprint, blend = masks.blueprint.any(1), masks.blend.clone()
        for head in (blueprint, blend):
            head[:, 0] |= ~head.any(1)  # a head needs something to choose, even where nothing can germinate
        return _to_numpy(torch.cat([masks.slot.any(1), blueprint, blend, masks.op], 1))


def _without_irrelevant(wanted: Tensor) -> Tensor:
    slot, blueprint, blend, op = wanted.unbind(1)
    seeds = op == Op.GERMINATE
    return torch.stack([slot.where(op != Op.WAIT, 0), blueprint.where(seeds, 0), blend.where(seeds, 0), op], 1)


def _to_numpy(mask: Tensor) -> NDArray[np.bool_]:
    array: NDArray[np.bool_] = mask.numpy()
    return array


def observation_space(num_slots: int) -> spaces.Box:
    columns = [placed.column for placed in observation_layout(num_slots)]
    low, high = (np.array([getattr(column, end) for column in columns], dtype=np.float32) for end in ("low", "high"))
    return spaces.Box(low, high, dtype=np.float32)


def mask_info(masks: ActionMasks) -> Info:
    """`masks`: by head, conditional ones included; `action_mask [N, A]`: which of the `joint_actions` are legal."""
    heads = {name: getattr(masks, name).numpy().copy() for name in HEAD_NAMES}
    return {"masks": heads, "action_mask": joint_mask(masks).numpy()}


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
