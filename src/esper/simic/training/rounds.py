"""One round: whole episodes of every host, from their start to their end, into the agent's buffer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.leyline import Op
from esper.simic.agent.ppo import PPOAgent
from esper.simic.control import RunningMeanStd
from esper.simic.training.world import GrowthWorld
from esper.tolaria import EpisodeResult


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What the episodes of a round showed."""

    results: Mapping[str, list[EpisodeResult]]
    """Per task; the test split is not read."""
    ops: Mapping[str, float]
    """How often each op was chosen in an episode, on average."""
    returns: Tensor
    """`[N]`: rewards summed over each episode."""
    components: Mapping[str, float]
    """Named terms of the rewards, summed over an episode, on average."""

    def objective(self, task: str) -> float:
        """Mean objective on validation."""
        scores = [result.val_objective for result in self.results[task]]
        return sum(scores) / len(scores)

    @property
    def added_params(self) -> float:
        """Mean parameters added."""
        return _mean([result.added_params for results in self.results.values() for result in results])

    @property
    def kept(self) -> float:
        """Mean seeds kept for good."""
        return _mean([len(result.kept) for results in self.results.values() for result in results])


def collect_round(
    agent: PPOAgent,
    normalizer: RunningMeanStd,
    world: GrowthWorld,
    round_index: int,
    check_interrupt: Callable[[], None] = lambda: None,
) -> RoundOutcome:
    """Play one episode per host and store it; the statistics of the normaliser stay as they are.

    `check_interrupt` is called after every step, and may raise.
    """
    agent.buffer.clear()
    observations, masks = world.reset(round_index)
    hidden = agent.initial_hidden(world.num_envs)
    running = torch.ones(world.num_envs, dtype=torch.bool)
    ops = torch.zeros(len(Op))
    returns = torch.zeros(world.num_envs)
    components: dict[str, float] = {}
    while running.any():
        normalized = normalizer.normalize(observations)
        decision = agent.act(normalized.to(agent.device), {k: m.to(agent.device) for k, m in masks.items()}, hidden)
        actions = decision.actions.cpu()
        step = world.step(actions)
        ended = step.terminated | step.truncated
        bootstrap = None
        if not agent.horizon_is_terminal and step.truncated.any():
            bootstrap = agent.value(normalizer.normalize(step.observations).to(agent.device), decision.hidden)
        agent.buffer.add_step(
            normalized,
            masks,
            hidden,
            decision,
            step.rewards,
            ended,
            step.truncated,
            bootstrap_values=bootstrap,
            raw_obs=observations,
            active=running,
        )
        ops += torch.bincount(actions[running, -1], minlength=len(Op))
        returns += torch.where(running, step.rewards, 0.0)
        for name, term in step.components.items():
            components[name] = components.get(name, 0.0) + float(term[running].sum()) / world.num_envs
        running = running & ~ended
        observations, masks, hidden = step.observations, step.masks, decision.hidden
        check_interrupt()
    counts = {op.name: float(ops[op]) / world.num_envs for op in Op}
    return RoundOutcome(world.results(), counts, returns, components)


def _mean(values: list[int]) -> float:
    return sum(values) / len(values)
