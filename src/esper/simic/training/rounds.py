"""One round: whole episodes of every host, from their start to their end, into the agent's buffer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from esper.kasmina import SlotTable, num_blueprints
from esper.leyline import SEED_EXPLODING_GRADIENT, SEED_VANISHING_GRADIENT, Op, Stage
from esper.simic.agent.network import Policy
from esper.simic.agent.ppo import PPOAgent
from esper.simic.agent.types import Hidden
from esper.simic.control.action_masks import move, move_masks
from esper.simic.training.world import GrowthWorld, Transition


class RoundTally:
    """The episodes of a round one by one: tensors `[N]`, NaN where an episode was dropped."""

    def __init__(self, world: GrowthWorld) -> None:
        self._by_task = world.by_task
        self.ended: dict[str, Tensor] = {}
        """What the last step of each episode tells of the whole."""
        self.ops = torch.zeros(world.num_envs, len(Op))
        self.returns = torch.zeros(world.num_envs)
        self.components: dict[str, Tensor] = {}
        """Named terms of the rewards, summed over each episode."""
        self.dropped = torch.zeros(world.num_envs, dtype=torch.bool)
        """Lost with their workers."""
        self.seed_epochs = torch.zeros(num_blueprints() + 1, 4, dtype=torch.int64)
        """`[B + 1, 4]`: per blueprint id, epochs of seeds with a measured gradient, with a vanishing and with an
        exploding one, and with a measured contribution."""

    def add(self, actions: Tensor, step: Transition, running: Tensor) -> None:
        """Count one step, where an episode is running."""
        # Sums over the episode.
        self.ops[torch.arange(len(actions)), actions[:, -1]] += running
        self.returns += torch.where(running, step.rewards, 0.0)
        for name, term in step.components.items():
            added = torch.where(running, term, 0.0)
            self.components[name] = self.components.get(name, torch.zeros_like(added)) + added
        # What the last step tells of the whole episode.
        last = {
            "val_score": step.score,
            "objective": step.objective,
            "twin_objective": step.twin_objective,
            "price": step.price,
            "added_params": step.table.added_params,
            "kept": (step.table.stage == Stage.FOSSILIZED).sum(1),
        }
        ended = running & step.over
        for name, values in last.items():
            column = self.ended.setdefault(name, torch.full_like(self.returns, torch.nan))
            column[ended] = values[ended].to(torch.float32)
        self._count_seeds(step.table, running)
        self.dropped |= running & step.dropped

    def _count_seeds(self, table: SlotTable, running: Tensor) -> None:
        norms, ids = table.seed_grad_norm.where(table.occupied, torch.nan)[running], table.blueprint[running]
        kinds = (
            norms.isfinite(),
            norms < SEED_VANISHING_GRADIENT,
            norms > SEED_EXPLODING_GRADIENT,
            table.contribution[running].isfinite(),
        )
        self.seed_epochs.index_add_(0, ids.flatten(), torch.stack(kinds, -1).flatten(0, 1).long())

    def means(self) -> dict[str, Any]:
        """Means over the episodes that were not dropped, as `RoundCompleted` takes them."""
        whole, ended = ~self.dropped, self.ended
        gain = ended["objective"] - ended["twin_objective"]
        ops = self.ops[whole].mean(0).tolist()
        return {
            "objective": {task: float(part.nanmean()) for task, part in self._by_task(ended["objective"]).items()},
            "gain": {task: float(part.nanmean()) for task, part in self._by_task(gain).items()},
            "ops": {op.name: ops[op] for op in Op},
            "kept": float(ended["kept"].nanmean()),
            "added_params": float(ended["added_params"].nanmean()),
            "components": {name: float(term[whole].mean()) for name, term in self.components.items()},
            "dropped": int(self.dropped.sum()),
        }

    def rows(self) -> list[dict[str, Any]]:
        """The episodes one by one, as `EpisodeEnded` takes them."""
        columns: dict[str, list[Any]] = {name: column.tolist() for name, column in self.ended.items()}
        columns["task"] = [task for task, hosts in self._by_task(self.returns).items() for _ in hosts]
        columns |= {"return_": self.returns.tolist(), "dropped": self.dropped.tolist()}
        columns["ops"] = [{op.name: int(row[op]) for op in Op} for row in self.ops.tolist()]
        terms = {name: term.tolist() for name, term in self.components.items()}
        hosts = range(len(self.returns))
        columns["components"] = [{name: term[host] for name, term in terms.items()} for host in hosts]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def collect_round(
    agent: PPOAgent,
    world: GrowthWorld,
    index: int,
    check_interrupt: Callable[[], None] = lambda: None,
    teacher: str | None = None,
    *,
    watch: bool = True,
) -> RoundTally:
    """Play one episode per host and store it; the statistics of the policy's normaliser stay as they are.

    `check_interrupt` is called after every step, and may raise. With a `teacher` this is a lesson: what is stored as
    actions is what the controller of that name would do; the agent either watches it play, or plays itself and is told.
    """
    policy = agent.policy
    agent.buffer.clear()
    observations, masks = world.reset(index, check_interrupt, lesson=teacher is not None)
    hidden = policy.initial_hidden(world.num_envs)
    running, tally = torch.ones(world.num_envs, dtype=torch.bool), RoundTally(world)
    teachers = None if teacher is None else world.controllers(teacher)
    while running.any():
        # The world is on the CPU; policy and buffer are on the agent's device.
        observations, masks = move(observations, agent.device), move_masks(masks, agent.device)
        normalized = policy.normalized(observations)
        decision = agent.act(normalized, masks, hidden)
        played = decision.actions.cpu()
        # A teacher's action is the label, whoever plays.
        if teachers is not None:
            decision = decision._replace(actions=world.decide(teachers))
            played = decision.actions if watch else played
        step = world.step(played)
        agent.buffer.add_step(
            normalized,
            masks,
            hidden,
            decision,
            step.rewards,
            step.over,
            step.truncated,
            bootstrap_values=None if agent.config.horizon_is_terminal else _values_after(step, policy, decision.hidden),
            raw_obs=observations,
            active=running,
        )
        tally.add(played, step, running)
        running = running & ~(step.over | step.dropped)
        observations, masks, hidden = step.observations, step.masks, decision.hidden
        check_interrupt()
    agent.buffer.step_counts[tally.dropped] = 0  # nothing is learned from episodes that were lost
    return tally


def _values_after(step: Transition, policy: Policy, hidden: Hidden) -> Tensor | None:
    """What the state after `step` is worth, if an episode was cut off there."""
    if not step.truncated.any():
        return None
    return policy.value(policy.normalized(move(step.observations, policy.device)), hidden)
