"""One round: whole episodes of every host, from their start to their end, into the agent's buffer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esper.kasmina import num_blueprints
from esper.leyline import SEED_EXPLODING_GRADIENT, SEED_VANISHING_GRADIENT, Op
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.types import Hidden
from esper.simic.control import RunningMeanStd
from esper.simic.control.placing import move, move_masks
from esper.simic.training.world import GrowthWorld, Transition


@dataclass(frozen=True, slots=True)
class EpisodeTable:
    """The episodes of a round one by one: fields `[N]`, NaN where an episode was dropped."""

    score: Tensor
    """Quality of the committed network on validation."""
    objective: Tensor
    twin_objective: Tensor
    price: Tensor
    added_params: Tensor
    kept: Tensor
    returns: Tensor
    ops: Tensor
    """`[N, O]`."""
    components: Mapping[str, Tensor]
    dropped: Tensor

    def rows(self) -> list[dict[str, Any]]:
        """One by one, in plain types."""
        names = ("objective", "twin_objective", "price", "added_params", "kept")
        columns: dict[str, list[Any]] = {name: getattr(self, name).tolist() for name in names}
        columns |= {"val_score": self.score.tolist(), "return_": self.returns.tolist()}
        columns["dropped"] = self.dropped.tolist()
        columns["ops"] = [{op.name: int(row[op]) for op in Op} for row in self.ops.tolist()]
        terms = {name: term.tolist() for name, term in self.components.items()}
        columns["components"] = [{name: term[host] for name, term in terms.items()} for host in range(len(self.score))]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


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
    episodes: EpisodeTable
    seed_epochs: Tensor
    """`[B + 1, 4]`: per blueprint id, epochs of seeds with a measured gradient, with a vanishing and with an exploding
    one, and with a measured contribution."""


class _Tally:
    """Sums over a round, taken only where an episode is running."""

    def __init__(self, world: GrowthWorld) -> None:
        self._world = world
        self.ops = torch.zeros(world.num_envs, len(Op))
        self.returns = torch.zeros(world.num_envs)
        self.components: dict[str, Tensor] = {}
        unknown = torch.full((6, world.num_envs), torch.nan)
        self.objective, self.twin, self.params, self.kept, self.score, self.price = unknown
        self.seed_epochs = torch.zeros(num_blueprints() + 1, 4, dtype=torch.int64)
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
            (self.score, step.score),
            (self.price, step.price),
        ):
            mine[ended] = theirs[ended].to(torch.float32)
        self._count_seeds(step, running)
        self.dropped |= running & step.dropped

    def _count_seeds(self, step: Transition, running: Tensor) -> None:
        norms, ids = step.seed_grad_norm[running], step.blueprint[running]
        kinds = (
            norms.isfinite(),
            norms < SEED_VANISHING_GRADIENT,
            norms > SEED_EXPLODING_GRADIENT,
            step.contribution[running].isfinite(),
        )
        self.seed_epochs.index_add_(0, ids.flatten(), torch.stack(kinds, -1).flatten(0, 1).long())

    def _episodes(self) -> EpisodeTable:
        return EpisodeTable(
            self.score,
            self.objective,
            self.twin,
            self.price,
            self.params,
            self.kept,
            self.returns,
            self.ops,
            self.components,
            self.dropped,
        )

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
            self._episodes(),
            self.seed_epochs,
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

    The normaliser is on the agent's device.

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
        # The world is on the CPU; policy, normaliser and buffer are on the agent's device.
        observations, masks = move(observations, agent.device), move_masks(masks, agent.device)
        normalized = normalizer.normalize(observations)
        decision = agent.act(normalized, masks, hidden)
        played = decision.actions.cpu()
        if teachers is not None:
            advice = world.decide(teachers)
            played = advice if watch else played
            decision = decision._replace(actions=advice)
        step = world.step(played)
        agent.buffer.add_step(
            normalized,
            masks,
            hidden,
            decision,
            step.rewards,
            step.terminated | step.truncated,
            step.truncated,
            bootstrap_values=_values_after(step, agent, normalizer, decision.hidden),
            raw_obs=observations,
            active=running,
        )
        tally.add(played, step, running)
        running = running & ~(step.terminated | step.truncated | step.dropped)
        observations, masks, hidden = step.observations, step.masks, decision.hidden
        check_interrupt()
    agent.buffer.step_counts[tally.dropped] = 0  # nothing is learned from episodes that were lost
    return tally.outcome()


def _values_after(step: Transition, agent: PPOAgent, normalizer: RunningMeanStd, hidden: Hidden) -> Tensor | None:
    """What the state after `step` is worth, if an episode was cut off there and went on being worth something."""
    if agent.horizon_is_terminal or not step.truncated.any():
        return None
    return agent.value(normalizer.normalize(move(step.observations, agent.device)), hidden)
