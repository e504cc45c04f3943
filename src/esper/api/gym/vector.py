"""`gymnasium.make_vec("esper/Growth-v0", num_envs=..., task=...)`: many hosts, no copy of an environment each."""

from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from torch import Tensor

from esper.api.environment import make_env
from esper.api.gym.spaces import ActionCoding, Info, end_info, mask_info, observation_space
from esper.tasks import Task
from esper.tolaria import Environment, Step

Actions = NDArray[np.int64]
Observations = NDArray[np.float32]


class GrowthVectorEnv(VectorEnv[Observations, Actions, NDArray[Any]]):
    """N hosts that grow side by side, one epoch per step, with the parts that `GrowthGymEnv` tells.

    An episode that ends is followed by the next one in the same step (`AutoresetMode.SAME_STEP`): the observation is
    then the first of the new episode, `info["final_obs"] [N, D]` the last of the old one and `info["final_info"]` what
    was grown; `info["_final_obs"] [N]` says in which hosts. With `workers`, an episode whose worker was lost is
    reported as truncated, without a result, and `info["dropped"] [N]` says which those are.

    `reset(seed=s)` begins the episodes of `esper.make_env(task, envs=num_envs, seed=s)`.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "render_modes": [],
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self, num_envs: int = 1, task: str | Task = "mnist1d", *, flat_actions: bool = False, **options: Any
    ) -> None:
        self._env: Environment = make_env(task, envs=num_envs, **options)
        situation = self._env.situation
        num_slots = situation.table.shape[1]
        self._coding = ActionCoding(num_slots, flat=flat_actions)
        self._masks = situation.masks
        self._observations = self._env.observations
        self._seeded = False
        self.num_envs = num_envs
        self.single_action_space = self._coding.space
        self.single_observation_space = observation_space(num_slots)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observations, Info]:
        """Begin the next episodes, or, given a seed, the first ones of that seed. There are no `options`."""
        super().reset(seed=seed, options=options)
        if seed is not None or not self._seeded:
            self._env.reseed(seed if seed is not None else int(self.np_random.integers(2**63)))
            self._seeded = True
        self._observations, self._masks = self._env.reset()
        info = _marked(mask_info(self._masks), np.ones(self.num_envs, dtype=np.bool_))
        return self._observations.numpy().copy(), info

    def step(
        self, actions: Actions
    ) -> tuple[Observations, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Info]:
        """Train one epoch with `actions`, or with WAIT where one is not legal."""
        before = self._observations
        heads, illegal = self._coding.decode(actions, self._masks)
        step = self._env.step(heads)
        dropped, ended = step.info.dropped, step.info.outcome.ended
        self._observations, self._masks = step.observations, step.masks
        if ended.any():
            self._observations, self._masks = self._env.reset(hosts=ended.nonzero().flatten().tolist())
        happened = {"illegal_action": illegal.numpy(), "dropped": dropped.numpy()}
        info = _marked(mask_info(self._masks) | happened, np.ones(self.num_envs, dtype=np.bool_))
        if (ended | dropped).any():
            info |= self._final_info(step, ended, torch.where(dropped[:, None], before, step.observations))
        return (
            self._observations.numpy().copy(),
            step.rewards.where(~dropped, 0.0).numpy(),
            step.terminated.numpy(),
            (step.truncated | dropped).numpy(),
            info,
        )

    def _final_info(self, step: Step, ended: Tensor, last: Tensor) -> Info:
        return _marked({"final_obs": last.numpy()}, (ended | step.info.dropped).numpy()) | _marked(
            {"final_info": end_info(step.info.outcome)}, ended.numpy()
        )

    def action_masks(self) -> NDArray[np.bool_]:
        """The masks of all hosts in the form that sb3-contrib asks for; exact with `flat_actions=True` only."""
        return self._coding.learner_mask(self._masks)

    def close_extras(self) -> None:
        self._env.close()


def _marked(info: Info, where: NDArray[np.bool_]) -> Info:
    """`info` with Gymnasium's word, `_name [N]`, on which hosts have each entry."""
    marks = {f"_{name}": where.copy() for name in info}
    values = {name: _marked(value, where) if isinstance(value, dict) else value for name, value in info.items()}
    return values | marks
