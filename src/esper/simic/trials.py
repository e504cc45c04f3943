"""Learning trials with fixed settings: the evidence that the agent learns, shared by tests and benchmarks."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from esper.simic.agent.collect import World, collect, first_view, play_episodes
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.types import PPOUpdateMetrics
from esper.simic.worlds import EndlessWorld, FactoredBandit, masked_cartpole

CARTPOLE_ENVS = 8
CARTPOLE_SETTINGS: dict[str, Any] = {
    "num_envs": CARTPOLE_ENVS,
    "max_steps": 128,
    "lstm_hidden_dim": 64,
    "lr": 1e-3,
    "gamma": 0.99,
    "entropy_coef": 0.01,
    "recurrent_n_epochs": 4,
    "num_minibatches": 4,
    "target_kl": None,
}
MEMORY_ENVS = 16
MEMORY_SETTINGS: dict[str, Any] = {
    **CARTPOLE_SETTINGS,
    "num_envs": MEMORY_ENVS,
    "max_steps": 51,
    "lr": 2e-3,
    "gamma": 0.9,
    "gae_lambda": 0.9,
}
"""For tasks of 51 steps: one episode per row, so that every sequence starts at an episode's start."""
BANDIT_ENVS = 64
BANDIT_SETTINGS: dict[str, Any] = {
    "num_envs": BANDIT_ENVS,
    "max_steps": 4,
    "lstm_hidden_dim": 32,
    "lr": 3e-3,
    "entropy_coef": 0.2,  # with little exploration, some seeds settle for LOOK before they have tried enough of USE
    "recurrent_n_epochs": 4,
    "num_minibatches": 4,
}
BANDIT_ROUNDS = 40
ENDLESS_ENVS = 32
"""Nothing that is done matters there, so the policy gradient is noise, and more environments average it out."""
ENDLESS_SETTINGS: dict[str, Any] = {
    "num_envs": ENDLESS_ENVS,
    "max_steps": 32,
    "lstm_hidden_dim": 16,
    "lr": 3e-3,
    "gamma": 0.9,
    "value_coef": 2.0,
    "entropy_coef": 0.0,
    "recurrent_n_epochs": 2,
}
ENDLESS_LIMIT = 10
ENDLESS_ROUNDS = 100
EVALUATION_SEED = 10_000
"""Added to a trial's seed for the episodes that it is judged by."""


@dataclass(frozen=True, slots=True)
class Trial:
    """How one trial went."""

    seed: int
    steps: int
    """Environment steps learned from."""
    score: float
    cpu_seconds: float
    """Everything included: environments, learning and evaluation."""


def agent_for(world: World, settings: dict[str, Any], **overrides: Any) -> PPOAgent:
    """An agent on the CPU that fits `world`."""
    return PPOAgent(state_dim=world.obs_dim, action_spec=world.spec, **({"device": "cpu"} | settings | overrides))


def learn(agent: PPOAgent, world: World, until: Callable[[PPOUpdateMetrics], bool]) -> None:
    """Rounds of playing and learning until `until` says, after an update, that it is enough."""
    view = first_view(agent, world)
    enough = False
    while not enough:
        view = collect(agent, world, view)
        enough = until(agent.update())


def learn_to_score(
    make_world: Callable[[int], World], settings: dict[str, Any], seed: int, *, bar: float, budget: int, every: int = 1
) -> Trial:
    """Learn until the deterministic policy averages `bar` over 20 episodes, looked at `every` so many rounds."""
    torch.manual_seed(seed)
    start = time.process_time()
    world = make_world(seed)
    agent = agent_for(world, settings)
    score = -torch.inf

    def until(_: PPOUpdateMetrics) -> bool:
        nonlocal score
        if agent.updates % every == 0:
            score = play_episodes(agent, make_world(EVALUATION_SEED + seed), 20).mean().item()
        return score >= bar or agent.total_steps >= budget

    learn(agent, world, until)
    return Trial(seed, agent.total_steps, score, time.process_time() - start)


def cartpole_trial(seed: int, *, bar: float = 195.0, budget: int = 40_000) -> Trial:
    """Velocity-masked CartPole."""
    return learn_to_score(lambda s: masked_cartpole(CARTPOLE_ENVS, s), CARTPOLE_SETTINGS, seed, bar=bar, budget=budget)


def bandit_trial(seed: int) -> Trial:
    """The factored bandit; the score is the share of the optimum."""
    torch.manual_seed(seed)
    start = time.process_time()
    world = FactoredBandit(BANDIT_ENVS, seed)
    agent = agent_for(world, BANDIT_SETTINGS)
    learn(agent, world, lambda _: agent.updates >= BANDIT_ROUNDS)
    score = play_episodes(agent, FactoredBandit(BANDIT_ENVS, EVALUATION_SEED + seed), 512).mean().item()
    return Trial(seed, agent.total_steps, score, time.process_time() - start)


def endless_trial(seed: int, world: EndlessWorld | None = None, **overrides: Any) -> Trial:
    """The endless world; the score is the relative error of the mean value, in the worse of its two states."""
    torch.manual_seed(seed)
    start = time.process_time()
    world = EndlessWorld(ENDLESS_ENVS, ENDLESS_LIMIT) if world is None else world
    agent = agent_for(world, ENDLESS_SETTINGS, **overrides)
    learn(agent, world, lambda _: agent.updates >= ENDLESS_ROUNDS)
    collect(agent, world, first_view(agent, world))
    in_second = agent.buffer.obs[..., 1] == 1.0
    means = torch.stack([agent.buffer.values[~in_second].mean(), agent.buffer.values[in_second].mean()])
    error = (means / world.true_values(agent.gamma) - 1.0).abs().max().item()
    return Trial(seed, agent.total_steps, error, time.process_time() - start)
