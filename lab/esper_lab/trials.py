"""Learning trials with fixed settings: the evidence that the agent learns, shared by tests and benchmarks."""

import importlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from esper.simic.agent import PPOAgent, PPOUpdateMetrics
from esper.simic.config import LearnerConfig
from esper_lab.player import Player
from esper_lab.worlds import EndlessWorld, FactoredBandit, ToyWorld, masked_cartpole, repeat_world

EVALUATION_SEED = 10_000
"""Added to a trial's seed for the episodes that it is judged by."""

TOY_LEARNER: dict[str, Any] = {
    "device": "cpu",
    "lstm_hidden_dim": 128,
    "lr": 3e-4,
    "gamma": 0.995,
    "gae_lambda": 0.95,
    "epochs": 1,
    "num_minibatches": 1,
    "target_kl": 0.015,
    "entropy_coef": 0.05,
    "entropy_coef_min": 0.01,
    "max_grad_norm": 0.5,
    "horizon_is_terminal": False,
}
"""Options that suit worlds other than growth, whose episodes may go on beyond a round."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """Something to learn, the options of an agent that can, and how many episodes it is judged by."""

    make_world: Callable[[int], ToyWorld]
    """From a seed."""
    options: dict[str, Any]
    episodes: int

    def score(self, agent: PPOAgent, seed: int) -> float:
        """Mean return of the deterministic policy in episodes that the trial with this seed does not learn from."""
        return Player(agent, self.make_world(EVALUATION_SEED + seed)).returns(self.episodes).mean().item()


CARTPOLE = Exercise(
    lambda seed: masked_cartpole(8, seed),
    {
        "max_steps": 128,
        "lstm_hidden_dim": 64,
        "lr": 1e-3,
        "gamma": 0.99,
        "entropy_coef": 0.01,
        "epochs": 4,
        "num_minibatches": 4,
        "target_kl": None,
    },
    episodes=20,
)
MEMORY_OPTIONS: dict[str, Any] = CARTPOLE.options | {"max_steps": 51, "lr": 2e-3, "gamma": 0.9, "gae_lambda": 0.9}
"""For tasks of 51 steps: one episode per row, so that every sequence starts at an episode's start."""
MEMORY_TASKS = {"RepeatPreviousEasy": ("repeat_previous", 0.9), "RepeatFirstEasy": ("repeat_first", 0.95)}
"""Of POPGym: the module of each, and the mean return at which it counts as solved."""
BANDIT = Exercise(
    lambda seed: FactoredBandit(64, seed),
    {
        "max_steps": 4,
        "lstm_hidden_dim": 32,
        "lr": 3e-3,
        "entropy_coef": 0.3,  # with little exploration, more seeds settle for LOOK before they have tried enough of USE
        "epochs": 4,
        "num_minibatches": 4,
    },
    episodes=512,
)
BANDIT_ROUNDS = 80
BANDIT_STEPS = BANDIT_ROUNDS * 64 * 4
ENDLESS_OPTIONS: dict[str, Any] = {
    "max_steps": 32,
    "lstm_hidden_dim": 16,
    "lr": 3e-3,
    "gamma": 0.9,
    "value_coef": 2.0,
    "entropy_coef": 0.0,
    "epochs": 2,
}
ENDLESS_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class Trial:
    """How one trial went."""

    seed: int
    steps: int
    """Environment steps learned from."""
    score: float
    cpu_seconds: float
    """Everything included: environments, learning and evaluation."""


def agent_for(world: ToyWorld, options: dict[str, Any]) -> PPOAgent:
    """An agent on the CPU that fits `world`."""
    given = TOY_LEARNER | options
    learner = LearnerConfig(**{name: value for name, value in given.items() if name != "max_steps"})
    sizes = {"num_envs": world.num_envs, "max_steps": given["max_steps"]}
    return PPOAgent(learner, state_dim=world.obs_dim, action_spec=world.spec, **sizes)


def learn(agent: PPOAgent, world: ToyWorld, until: Callable[[PPOUpdateMetrics], bool]) -> None:
    """Rounds of playing and learning until `until` says, after an update, that it is enough."""
    player = Player(agent, world)
    enough = False
    while not enough:
        player.fill_buffer()
        enough = until(agent.update())


def run_trial(exercise: Exercise, seed: int, *, budget: int, bar: float = math.inf, every: int = 1) -> Trial:
    """Learn for `budget` steps, or until the score, which is looked at `every` so many rounds, reaches `bar`."""
    torch.manual_seed(seed)
    start = time.process_time()
    world = exercise.make_world(seed)
    agent = agent_for(world, exercise.options)
    score = -math.inf

    def until(_: PPOUpdateMetrics) -> bool:
        nonlocal score
        if agent.updates % every == 0:
            score = exercise.score(agent, seed)
        return score >= bar or agent.total_steps >= budget

    learn(agent, world, until)
    return Trial(seed, agent.total_steps, score, time.process_time() - start)


def cartpole_trial(seed: int, *, budget: int = 40_000) -> Trial:
    """Velocity-masked CartPole."""
    return run_trial(CARTPOLE, seed, bar=195.0, budget=budget)


def memory_trial(name: str, seed: int) -> Trial:
    """A task of POPGym by its name; an ImportError where that is not installed."""
    module, bar = MEMORY_TASKS[name]
    make = getattr(importlib.import_module(f"popgym.envs.{module}"), name)
    exercise = Exercise(lambda seed: repeat_world(make, 16, seed), MEMORY_OPTIONS, episodes=20)
    return run_trial(exercise, seed, bar=bar, budget=500_000, every=10)


def bandit_trial(seed: int) -> Trial:
    """The factored bandit; the score is the share of the optimum."""
    return run_trial(BANDIT, seed, budget=BANDIT_STEPS, every=BANDIT_ROUNDS)


def endless_trial(seed: int, kind: type[EndlessWorld] = EndlessWorld, **overrides: Any) -> Trial:
    """The endless world; the score is the relative error of the mean value, in the worse of its two states."""
    torch.manual_seed(seed)
    start = time.process_time()
    # Nothing that is done matters there, so the policy gradient is noise, and many environments average it out.
    world = kind(num_envs=32, limit=10)
    agent = agent_for(world, ENDLESS_OPTIONS | overrides)
    learn(agent, world, lambda _: agent.updates >= ENDLESS_ROUNDS)
    Player(agent, world).fill_buffer()
    in_second = agent.buffer.obs[..., 1] == 1.0
    means = torch.stack([agent.buffer.values[~in_second].mean(), agent.buffer.values[in_second].mean()])
    error = (means / world.true_values(agent.config.gamma) - 1.0).abs().max().item()
    return Trial(seed, agent.total_steps, error, time.process_time() - start)
