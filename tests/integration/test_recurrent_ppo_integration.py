"""The agent learns what needs memory. The full runs are slow and use peers; `docs/learner.md` has their results."""

import statistics

import pytest
import torch
from torch import Tensor

from esper.simic.control import Masks
from esper_lab.player import Player
from esper_lab.trials import MEMORY_OPTIONS, MEMORY_TASKS, agent_for, cartpole_trial, learn, memory_trial
from esper_lab.worlds import ToyStep, one_head

# Rows of 128 steps hold parts of longer episodes, which go on from a stored state; four epochs of that are warned of.
stored_states = pytest.mark.filterwarnings("ignore:epochs=4 is elevated:RuntimeWarning")


class Recall:
    """A cue is shown in the first step; in the last one, five blank steps later, it must be named."""

    LENGTH, CUES = 7, 3

    def __init__(self, num_envs: int, seed: int) -> None:
        self.num_envs, self.obs_dim, self.spec = num_envs, self.CUES + 1, one_head(self.CUES)
        self._masks = self.spec.all_legal((num_envs,))
        self._generator = torch.Generator().manual_seed(seed)

    def reset(self) -> tuple[Tensor, Masks]:
        self._age = 0
        self._cue = torch.randint(self.CUES, (self.num_envs,), generator=self._generator)
        return torch.nn.functional.one_hot(self._cue, self.obs_dim).float(), self._masks

    def step(self, actions: Tensor) -> ToyStep:
        self._age += 1
        last = self._age == self.LENGTH
        rewards = (actions[:, 0] == self._cue).float() * last
        obs = torch.zeros(self.num_envs, self.obs_dim)
        obs[:, -1] = float(self._age == self.LENGTH - 1)
        following = self.reset()[0] if last else obs
        ended = torch.full((self.num_envs,), last)
        return ToyStep(following, self._masks, obs, rewards, ended, torch.zeros_like(ended))


def test_a_cue_is_remembered() -> None:
    torch.manual_seed(0)
    world = Recall(32, seed=0)
    agent = agent_for(world, MEMORY_OPTIONS | {"max_steps": Recall.LENGTH * 2, "lstm_hidden_dim": 32})
    learn(agent, world, lambda _: agent.updates >= 30)
    assert Player(agent, Recall(32, seed=1)).returns(96).mean() >= 0.95


@stored_states
def test_cartpole_without_velocities_is_balanced() -> None:
    trial = cartpole_trial(0, budget=20_000)
    assert trial.score >= 195.0


@pytest.mark.slow
@stored_states
def test_cartpole_without_velocities_is_balanced_on_ten_seeds() -> None:
    trials = [cartpole_trial(seed) for seed in range(10)]
    assert all(trial.score >= 195.0 for trial in trials)
    assert statistics.median(trial.steps for trial in trials) <= 20_000


@pytest.mark.slow
@pytest.mark.parametrize("name", MEMORY_TASKS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore")
def test_popgym_memory_tasks_are_solved(name: str, seed: int) -> None:
    pytest.importorskip("popgym")
    _, bar = MEMORY_TASKS[name]
    assert memory_trial(name, seed).score >= bar
