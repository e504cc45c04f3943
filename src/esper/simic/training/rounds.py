"""One round: whole episodes of every host, from their start to their end, into the agent's buffer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.leyline import Op
from esper.simic.agent.ppo import PPOAgent
from esper.simic.control import RunningMeanStd
from esper.simic.training.world import GrowthWorld, Transition


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What the episodes of a round showed; means leave out episodes that were dropped."""

    objective: Mapping[str, float]
    """Per task: of the committed networks on validation."""
    gain: Mapping[str, float]
    """Per task: the same minus that of the twins left alone; NaN without twins."""
    ops: Mapping[str, float]
    """How often each op was chosen in an episode."""
    kept: float
    """Seeds kept for good in an episode."""
    added_params: float
    """Parameters that the final networks add."""
    components: Mapping[str, float]
    """Named terms of the rewards, summed over an episode."""
    returns: Tensor
    """`[N]`: rewards summed over each episode."""
    dropped: int
    """Episodes that were lost with their workers."""


class _Tally:
    """Sums over a round, taken only where an episode is running."""

    def __init__(self, world: GrowthWorld) -> None:
        self._world = world
        self.ops = torch.zeros(world.num_envs, len(Op))
        self.returns = torch.zeros(world.num_envs)
        self.components: dict[str, Tensor] = {}
        self.objective, self.twin, self.params, self.kept = torch.full((4, world.num_envs), torch.nan)
        self.dropped = torch.zeros(world.num_envs, dtype=torch.bool)

    def add(self, actions: Tensor, step: Transition, running: Tensor) -> None:
        """Count one step."""
        self.ops[torch.arange(len(actions)), actions[:, -1]] += running
        self.returns += torch.where(running, step.rewards, 0.0)
        for name, term in step.components.items():
            added = torch.where(running, term, 0.0)
            self.components[name] = self.components.get(name, torch.zeros_like(added)) + added
        ended = running & (step.terminated | step.truncated)
        for mine, theirs in (
            (self.objective, step.objective),
            (self.twin, step.twin_objective),
            (self.params, step.added_params),
            (self.kept, step.kept),
        ):
            mine[ended] = theirs[ended].to(torch.float32)
        self.dropped |= running & step.dropped

    def outcome(self) -> RoundOutcome:
        """The means."""
        whole = ~self.dropped
        counts = self.ops[whole].mean(0).tolist()
        by_task = self._world.by_task
        return RoundOutcome(
            {task: float(values.nanmean()) for task, values in by_task(self.objective).items()},
            {task: float(values.nanmean()) for task, values in by_task(self.objective - self.twin).items()},
            {op.name: counts[op] for op in Op},
            float(self.kept.nanmean()),
            float(self.params.nanmean()),
            {name: float(term[whole].mean()) for name, term in self.components.items()},
            self.returns,
            int(self.dropped.sum()),
        )


def collect_round(
    agent: PPOAgent,
    normalizer: RunningMeanStd,
    world: GrowthWorld,
    round_index: int,
    check_interrupt: Callable[[], None] = lambda: None,
    teacher: str | None = None,
    *,
    watch: bool = True,
) -> RoundOutcome:
    """Play one episode per host and store it; the statistics of the normaliser stay as they are.

    `check_interrupt` is called after every step, and may raise. With a `teacher`, what is stored as actions is what the
    controller of that name would do; the agent either watches it play, or plays itself and is told.
    """
    agent.buffer.clear()
    observations, masks = world.reset(round_index, check_interrupt)
    hidden = agent.initial_hidden(world.num_envs)
    running = torch.ones(world.num_envs, dtype=torch.bool)
    tally = _Tally(world)
    teachers = None if teacher is None else world.controllers(teacher)
    while running.any():
        normalized = normalizer.normalize(observations)
        decision = agent.act(normalized.to(agent.device), {k: m.to(agent.device) for k, m in masks.items()}, hidden)
        played = decision.actions.cpu()
        if teachers is not None:
            advice = world.decide(teachers)
            played = advice if watch else played
            decision = decision._replace(actions=advice.to(agent.device))
        step = world.step(played)
        bootstrap = None
        if not agent.horizon_is_terminal and step.truncated.any():
            bootstrap = agent.value(normalizer.normalize(step.observations).to(agent.device), decision.hidden)
        agent.buffer.add_step(
            normalized,
            masks,
            hidden,
            decision,
            step.rewards,
            step.terminated | step.truncated,
            step.truncated,
            bootstrap_values=bootstrap,
            raw_obs=observations,
            active=running,
        )
        tally.add(played, step, running)
        running = running & ~(step.terminated | step.truncated | step.dropped)
        observations, masks, hidden = step.observations, step.masks, decision.hidden
        check_interrupt()
    agent.buffer.step_counts[tally.dropped] = 0  # nothing is learned from episodes that were lost
    return tally.outcome()
