"""Toy worlds with known answers, and an adapter for Gymnasium: what the learner is tested and compared on."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import gymnasium
import numpy as np
import torch
from torch import Tensor

from esper.simic.control.action_masks import ActionSpec, Head, Masks

CARTPOLE_POSITIONS = (0, 2)
"""Cart position and pole angle; without the two velocities one observation does not tell where things go."""


class ToyStep(NamedTuple):
    """What one step of a world brought, on the CPU.

    | tensor | shape | meaning |
    |---|---|---|
    | obs | `[N, D]` | what to act on next; of the new episode where one ended |
    | masks | per head | what is legal next |
    | final_obs | `[N, D]` | the state after the step, before any reset |
    | rewards, terminated, truncated | `[N]` | |
    """

    obs: Tensor
    masks: Masks
    final_obs: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor

    @property
    def ended(self) -> Tensor:
        """`[N]`: by either flag."""
        return self.terminated | self.truncated


class ToyWorld(Protocol):
    """N environments that start over by themselves. What they take and give is on the CPU."""

    spec: ActionSpec
    num_envs: int
    obs_dim: int

    def reset(self) -> tuple[Tensor, Masks]:
        """First observation `[N, D]` and masks."""
        ...

    def step(self, actions: Tensor) -> ToyStep:
        """Take `actions [N, H]`."""
        ...


def one_head(size: int) -> ActionSpec:
    """The spec of an ordinary discrete action."""
    return ActionSpec((Head("action", size),), decider="action")


class GymWorld:
    """N copies of a Gymnasium environment whose actions are discrete; `encode` makes a batch of observations floats.

    An action with several parts needs a `spec` whose heads have their sizes.
    """

    def __init__(
        self,
        make: Callable[[], gymnasium.Env[object, object]],
        num_envs: int,
        encode: Callable[[np.ndarray], np.ndarray],
        seed: int,
        spec: ActionSpec | None = None,
    ) -> None:
        self._envs = gymnasium.vector.SyncVectorEnv(
            [make] * num_envs, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
        )
        self._encode = encode
        self._seed = seed
        self.num_envs = num_envs
        action_space = self._envs.single_action_space
        if spec is None:
            assert isinstance(action_space, gymnasium.spaces.Discrete)
            spec = one_head(int(action_space.n))
        self.spec = spec
        self._masks = self.spec.all_legal((num_envs,))
        self.obs_dim = self.reset()[0].shape[1]

    def _tensor(self, obs: np.ndarray) -> Tensor:
        return torch.as_tensor(self._encode(obs), dtype=torch.float32)

    def reset(self) -> tuple[Tensor, Masks]:
        """New episodes everywhere, the same ones for the same seed."""
        return self._tensor(self._envs.reset(seed=self._seed)[0]), self._masks

    def step(self, actions: Tensor) -> ToyStep:
        """Take `actions [N, H]`."""
        chosen = actions.numpy().reshape(self._envs.action_space.shape)
        obs, rewards, terminated, truncated, info = self._envs.step(chosen)
        final = np.array(obs)
        for env in np.flatnonzero(terminated | truncated):
            final[env] = info["final_obs"][env]
        return ToyStep(
            self._tensor(obs),
            self._masks,
            self._tensor(final),
            torch.as_tensor(rewards, dtype=torch.float32),
            torch.as_tensor(terminated),
            torch.as_tensor(truncated),
        )


def masked_cartpole(num_envs: int, seed: int) -> GymWorld:
    """CartPole that shows positions but not velocities."""
    return GymWorld(lambda: gymnasium.make("CartPole-v1"), num_envs, lambda obs: obs[:, list(CARTPOLE_POSITIONS)], seed)


class FactoredBandit:
    """One step per episode; three heads whose relevance and masks depend on the first.

    The observation says which tool is right. PASS pays 0.2. LOOK(tool) pays 0.5 for the right tool. USE(tool, force)
    pays 1 for the right tool with force 2, 0.6 with another. Tool 2 cannot be used where the observation says so; the
    best is then to LOOK. The optimum is therefore known for every observation.
    """

    PASS, LOOK, USE = range(3)
    TOOLS, FORCES, BEST_FORCE = 3, 4, 2

    def __init__(self, num_envs: int, seed: int) -> None:
        self.num_envs = num_envs
        self.obs_dim = self.TOOLS + 1
        self.spec = ActionSpec(
            (
                Head("tool", self.TOOLS, (self.LOOK, self.USE), mask_given="mode"),
                Head("force", self.FORCES, (self.USE,)),
                Head("mode", 3),
            ),
            decider="mode",
        )
        self._generator = torch.Generator().manual_seed(seed)

    def reset(self) -> tuple[Tensor, Masks]:
        """A new question in every environment."""
        self._right = torch.randint(self.TOOLS, (self.num_envs,), generator=self._generator)
        self._broken = torch.rand(self.num_envs, generator=self._generator) < 0.5
        obs = torch.cat([torch.nn.functional.one_hot(self._right, self.TOOLS), self._broken.unsqueeze(1)], 1).float()
        masks = self.spec.all_legal((self.num_envs,))
        masks["tool"][self._broken, self.USE, self.TOOLS - 1] = False
        return obs, masks

    @property
    def best(self) -> Tensor:
        """The highest reward that the present questions allow, `[N]`."""
        return torch.where(self._broken & (self._right == self.TOOLS - 1), 0.5, 1.0)

    def step(self, actions: Tensor) -> ToyStep:
        """Take `actions [N, 3]`; the reward is a share of the best one."""
        tool, force, mode = actions.unbind(-1)
        right = tool == self._right
        pay = torch.tensor([0.2, 0.5, 0.6])[mode] * (right | (mode == self.PASS))
        pay = torch.where((mode == self.USE) & right & (force == self.BEST_FORCE), 1.0, pay)
        rewards = pay / self.best
        obs, masks = self.reset()
        ended = torch.ones(self.num_envs, dtype=torch.bool)
        return ToyStep(obs, masks, obs, rewards, ended, ~ended)


class EndlessWorld:
    """Two states that alternate for ever; leaving the first pays 2, leaving the second nothing.

    The mean value is r / (1 - gamma) with r = 1; see `true_values` for each state. The recording is cut after `limit`
    steps. Whoever takes the cut for an end, or bootstraps it with the state before it, gets other values.
    """

    REWARD = 2.0

    def __init__(self, num_envs: int, limit: int) -> None:
        self.num_envs = num_envs
        self.obs_dim = 2
        self.spec = one_head(2)
        self._masks = self.spec.all_legal((num_envs,))
        self._limit = limit

    def true_values(self, gamma: float) -> Tensor:
        """What each of the two states is worth."""
        first = self.REWARD / (1.0 - gamma**2)
        return torch.tensor([first, gamma * first])

    def _obs(self) -> Tensor:
        return torch.nn.functional.one_hot(self._age % 2, 2).float()

    def reset(self) -> tuple[Tensor, Masks]:
        """Environments start at different ages, so that cuts fall on different steps."""
        self._age = torch.arange(self.num_envs) % self._limit
        return self._obs(), self._masks

    def step(self, actions: Tensor) -> ToyStep:
        """Nothing that is done matters."""
        rewards = self.REWARD * (self._age % 2 == 0)
        self._age = self._age + 1
        final = self._obs()
        truncated = self._age == self._limit
        self._age = torch.where(truncated, actions.new_zeros(()), self._age)
        return ToyStep(self._obs(), self._masks, final, rewards, torch.zeros_like(truncated), truncated)


def repeat_world(make: Callable[[], gymnasium.Env[object, object]], num_envs: int, seed: int) -> GymWorld:
    """A POPGym task with one discrete observation, shown one-hot."""
    space = make().observation_space
    assert isinstance(space, gymnasium.spaces.Discrete)
    codes = np.eye(int(space.n))
    return GymWorld(make, num_envs, lambda obs: codes[obs], seed)
