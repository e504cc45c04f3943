"""`gymnasium.make("esper/Growth-v0", task=...)`: one host."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from esper.api.environment import make_env
from esper.api.gym.spaces import ActionCoding, Info, end_info, mask_info, observation_space
from esper.tasks import Task

Action = NDArray[np.int64] | np.int64
Observation = NDArray[np.float32]


class GrowthGymEnv(gymnasium.Env[Observation, Action]):
    """One host that grows, one epoch per step.

    | part | is |
    |---|---|
    | action | `MultiDiscrete([S, B, L, O])`: slot, blueprint, blend, op; `Discrete` with `flat_actions=True` |
    | observation | `Box`, float32, with the bounds of each column |
    | terminated | the governor ended the episode |
    | truncated | the episode reached its length |
    | `info["masks"]`, `info["action_mask"]` | what is legal next, by head and for every row of `joint_actions` |
    | `info["illegal_action"]` | the action was not legal, and the host waited instead |
    | `info["objective"]`, `["val_score"]` | at the end: how good what was grown is |
    | `info["parameters"]`, `["added_parameters"]`, `["added_flops"]` | at the end: how large it is |

    `reset(seed=s)` begins the episodes of host 0 of `esper.make_env(task, seed=s)`. Other options are those of
    `esper.make_env`.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]

    def __init__(self, task: str | Task = "mnist1d", *, flat_actions: bool = False, **options: Any) -> None:
        self._env = make_env(task, envs=1, **options)
        situation = self._env.situation
        num_slots = situation.table.shape[1]
        self._coding = ActionCoding(num_slots, flat=flat_actions)
        self._masks = situation.masks
        self._seeded = False
        self.action_space = self._coding.space
        self.observation_space = observation_space(num_slots)  # type: ignore[assignment]  # a Box of any number

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        """Begin the next episode, or, given a seed, the first one of that seed. There are no `options`."""
        super().reset(seed=seed, options=options)
        if seed is not None or not self._seeded:
            self._env.reseed(seed if seed is not None else int(self.np_random.integers(2**63)))
            self._seeded = True
        observations, self._masks = self._env.reset()
        return observations[0].numpy(), _only_row(mask_info(self._masks))

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, Info]:
        """Train one epoch with `action`, or with WAIT where it is not legal."""
        actions, illegal = self._coding.decode(np.asarray(action)[None], self._masks)
        step = self._env.step(actions)
        self._masks = step.masks
        ended = bool(step.info.outcome.ended[0])
        info = _only_row(mask_info(self._masks) | (end_info(step.info.outcome) if ended else {}))
        info["illegal_action"] = bool(illegal[0])
        return (
            step.observations[0].numpy(),
            float(step.rewards[0]),
            bool(step.terminated[0]),
            bool(step.truncated[0]),
            info,
        )

    def action_masks(self) -> NDArray[np.bool_]:
        """The masks in the form that sb3-contrib's `MaskablePPO` asks for; exact with `flat_actions=True` only."""
        mask: NDArray[np.bool_] = self._coding.learner_mask(self._masks)[0]
        return mask

    def close(self) -> None:
        self._env.close()


def _only_row(info: Info) -> Info:
    """The row of the only host of every array; numbers become Python's own."""
    rows = {name: _only_row(value) if isinstance(value, dict) else value[0] for name, value in info.items()}
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in rows.items()}
