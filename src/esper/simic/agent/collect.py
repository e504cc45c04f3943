"""Playing one round: the loop that fills a buffer from any vectorised world."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from esper.simic.agent.network import reset_hidden
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.types import Hidden
from esper.simic.control.action_masks import move, move_masks
from esper.simic.control.action_spec import ActionSpec, Masks


class Outcome(NamedTuple):
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


class World(Protocol):
    """N environments that start over by themselves. What they take and give is on the CPU."""

    spec: ActionSpec
    num_envs: int
    obs_dim: int

    def reset(self) -> tuple[Tensor, Masks]:
        """First observation `[N, D]` and masks."""
        ...

    def step(self, actions: Tensor) -> Outcome:
        """Take `actions [N, H]`."""
        ...


@dataclass(slots=True)
class View:
    """Where acting stands between two steps, on the agent's device: the next observation, masks, and LSTM state."""

    obs: Tensor
    masks: Masks
    hidden: Hidden


def first_view(agent: PPOAgent, world: World) -> View:
    """The view at the start of an episode in every environment."""
    return _view(agent, *world.reset(), agent.initial_hidden(world.num_envs))


def _view(agent: PPOAgent, obs: Tensor, masks: Masks, hidden: Hidden) -> View:
    return View(move(obs, agent.device), move_masks(masks, agent.device), hidden)


def _next_view(agent: PPOAgent, outcome: Outcome, dones: Tensor, hidden: Hidden) -> View:
    return _view(agent, outcome.obs, outcome.masks, reset_hidden(hidden, move(dones, agent.device)))


def collect(agent: PPOAgent, world: World, view: View) -> View:
    """Fill the agent's buffer with one round; returns the view to go on from."""
    for step in range(agent.max_steps):
        decision = agent.act(view.obs, view.masks, view.hidden)
        outcome = world.step(decision.actions.cpu())
        dones = outcome.terminated | outcome.truncated
        bootstrap = None
        if step == agent.max_steps - 1 or outcome.truncated.any():
            bootstrap = agent.policy.value(move(outcome.final_obs, agent.device), decision.hidden)
        agent.buffer.add_step(
            view.obs,
            view.masks,
            view.hidden,
            decision,
            outcome.rewards,
            dones,
            outcome.truncated & ~outcome.terminated,
            bootstrap_values=bootstrap,
        )
        view = _next_view(agent, outcome, dones, decision.hidden)
    return view


@torch.inference_mode()
def play_episodes(agent: PPOAgent, world: World, episodes: int) -> Tensor:
    """Undiscounted returns `[episodes]` of the deterministic policy, the first to end in each environment's turn."""
    view, running = first_view(agent, world), torch.zeros(world.num_envs)
    quota = torch.full((world.num_envs,), -(-episodes // world.num_envs))
    returns: list[float] = []
    while quota.any():
        decision = agent.act(view.obs, view.masks, view.hidden, deterministic=True)
        outcome = world.step(decision.actions.cpu())
        running += outcome.rewards
        dones = outcome.terminated | outcome.truncated
        counted = dones & (quota > 0)
        returns += running[counted].tolist()
        quota -= counted.long()
        running[dones] = 0.0
        view = _next_view(agent, outcome, dones, decision.hidden)
    return torch.tensor(returns[:episodes])
