"""Builders of random logits, masks and joint actions, and a plain enumeration to check clever routines against."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from esper.leyline import SlotConfig
from esper.simic.agent import PPOAgent
from esper.simic.agent.network import last_layer
from esper.simic.config import LearnerConfig, TrainingConfig
from esper.simic.control import ActionSpec, Head, Masks, RunningMeanStd, esper_action_spec
from esper_lab.player import Player
from esper_lab.trials import TOY_LEARNER
from esper_lab.worlds import ToyStep

ESPER_SPEC = esper_action_spec(SlotConfig.default())

BANDIT_SPEC = ActionSpec(
    (Head("tool", 3, matters_for=(1, 2), mask_given="mode"), Head("mode", 3), Head("force", 4, matters_for=(2,))),
    decider="mode",
)
"""Another shape of spec: the decider in the middle, no chain of three."""


def random_masks(
    spec: ActionSpec, batch: int, density: float = 0.6, generator: torch.Generator | None = None
) -> dict[str, Tensor]:
    """Random masks in which whatever can be reached has something legal; unreachable rows are often empty."""
    masks = {head.name: torch.rand(batch, *spec.mask_shape(head), generator=generator) < density for head in spec.heads}
    for index in reversed(spec.order):
        head = spec.heads[index]
        if head.mask_given is None:
            _force_one_legal(masks[head.name], generator)
        else:
            _forbid_values_without_continuation(spec, head, masks)
    _force_one_legal(masks[spec.decider], generator)
    return _repair(spec, masks, generator)


def _force_one_legal(mask: Tensor, generator: torch.Generator | None) -> None:
    lucky = torch.randint(mask.shape[-1], mask.shape[:-1], generator=generator)
    empty = ~mask.any(-1)
    mask |= empty.unsqueeze(-1) & torch.nn.functional.one_hot(lucky, mask.shape[-1]).bool()


def _forbid_values_without_continuation(spec: ActionSpec, head: Head, masks: dict[str, Tensor]) -> None:
    """A value of the given head that leaves `head` nothing is made illegal where `head` matters."""
    assert head.mask_given is not None
    possible = masks[head.name].any(-1)
    given = spec.head(head.mask_given)
    relevant = list(spec.relevant_decisions(head))
    if given.name == spec.decider:
        masks[given.name][:, relevant] &= possible[:, relevant]
    elif given.mask_given == spec.decider:
        masks[given.name][:, relevant] &= possible.unsqueeze(1)
    else:
        masks[given.name] &= possible


def _repair(spec: ActionSpec, masks: dict[str, Tensor], generator: torch.Generator | None) -> dict[str, Tensor]:
    """Where forbidding left the decider a value with no continuation, open one path below it."""
    for index in spec.order:
        head = spec.heads[index]
        if head.mask_given is not None and head.name != spec.decider:
            reachable = _reachable(spec, head, masks)
            lucky = torch.randint(head.size, reachable.shape, generator=generator)
            empty = reachable & ~masks[head.name].any(-1)
            masks[head.name] |= empty.unsqueeze(-1) & torch.nn.functional.one_hot(lucky, head.size).bool()
    return masks


def _reachable(spec: ActionSpec, head: Head, masks: dict[str, Tensor]) -> Tensor:
    """`[batch, given size]`, True where a drawn action can get to that row of the mask of `head`."""
    assert head.mask_given is not None
    decisions = masks[spec.decider].clone()
    relevant = torch.zeros(decisions.shape[-1], dtype=torch.bool)
    relevant[list(spec.relevant_decisions(head))] = True
    decisions &= relevant
    if head.mask_given == spec.decider:
        return decisions
    given = spec.head(head.mask_given)
    mask = masks[given.name] if given.mask_given is not None else masks[given.name].unsqueeze(1)
    return (decisions.unsqueeze(-1) & mask).any(1)


def joint_actions(spec: ActionSpec) -> Iterator[tuple[int, ...]]:
    """Every joint action, heads that do not matter at 0."""
    for values in itertools.product(*(range(head.size) for head in spec.heads)):
        decision = values[spec.decider_index]
        if all(
            value == 0 or decision in spec.relevant_decisions(head)
            for head, value in zip(spec.heads, values, strict=True)
        ):
            yield values


def enumerate_log_probs(spec: ActionSpec, logits: Tensor, masks: Masks) -> tuple[Tensor, Tensor]:
    """All joint actions `[J, H]` and their log-probabilities `[batch, J]` (-inf if illegal), in double precision.

    Plain and slow on purpose: one action at a time, each head a softmax over its own legal values.
    """
    actions = list(joint_actions(spec))
    columns = []
    for values in actions:
        decision = values[spec.decider_index]
        total = torch.zeros(len(logits), dtype=torch.float64)
        for index, head in enumerate(spec.heads):
            if decision in spec.relevant_decisions(head):
                mask = masks[head.name]
                if head.mask_given is not None:
                    mask = mask[:, values[spec.names.index(head.mask_given)]]
                rows = logits[:, index] if logits.dim() == 3 else logits[:, index, _row(spec, head, values)]
                head_logits = rows[:, : head.size].double().masked_fill(~mask, -math.inf)
                chosen = head_logits[:, values[index]] - head_logits.logsumexp(-1)
                total = total + chosen.nan_to_num(nan=-math.inf, neginf=-math.inf)
        columns.append(total)
    return torch.tensor(actions), torch.stack(columns, dim=-1)


def _row(spec: ActionSpec, head: Head, values: tuple[int, ...]) -> int:
    """Which row of conditional logits counts for this joint action."""
    given = head.mask_given or head.logits_given
    return 0 if given is None else values[spec.names.index(given)]


class RandomWorld:
    """Esper's heads under random masks, with random observations, rewards, terminations and truncations."""

    obs_dim = 6

    def __init__(self, num_envs: int = 4, end_rate: float = 0.15) -> None:
        self.num_envs, self.spec, self._end_rate = num_envs, ESPER_SPEC, end_rate

    def reset(self) -> tuple[Tensor, Masks]:
        return torch.randn(self.num_envs, self.obs_dim), random_masks(self.spec, self.num_envs)

    def step(self, actions: Tensor) -> ToyStep:
        ended = torch.rand(self.num_envs) < self._end_rate
        truncated = ended & (torch.rand(self.num_envs) < 0.5)
        obs, masks = self.reset()
        final = torch.randn(self.num_envs, self.obs_dim)
        return ToyStep(obs, masks, final, torch.randn(self.num_envs), ended & ~truncated, truncated)


SMALL_LEARNER: dict[str, Any] = TOY_LEARNER | {"lstm_hidden_dim": 16}
"""One exact step that shows every term of the loss."""


def make_agent(**overrides: object) -> PPOAgent:
    """A small agent for `RandomWorld`."""
    options: dict[str, Any] = {"state_dim": 6, "num_envs": 4, "max_steps": 12, **SMALL_LEARNER, **overrides}
    learner = {name: options.pop(name) for name in list(options) if name in LearnerConfig.__dataclass_fields__}
    return PPOAgent(LearnerConfig(**learner), **options)


def agent_with_round(seed: int = 0, world: RandomWorld | None = None, **overrides: object) -> PPOAgent:
    """The same with a full buffer. The policy is sharpened first, so that its heads differ from uniform."""
    torch.manual_seed(seed)
    agent = make_agent(**overrides)
    world = RandomWorld(agent.num_envs) if world is None else world
    with torch.no_grad():
        for name in agent.spec.names:
            last_layer(agent._base_network.policy_head(name)).weight.mul_(100.0)
    Player(agent, world).fill_buffer()
    return agent


def parameters_of(agent: PPOAgent) -> Tensor:
    """All parameters in one vector."""
    return torch.nn.utils.parameters_to_vector(agent._base_network.parameters()).detach().clone()


_OTHER_NAMES = {
    "lessons": "lessons.rounds",
    "lesson_passes": "lessons.passes",
    "lesson_lr": "lessons.lr",
    "lesson_smoothing": "lessons.op_smoothing",
    "lesson_detail_smoothing": "lessons.detail_smoothing",
    "telemetry": "telemetry.level",
    "lr": "learner.lr",
}


def config_of(base: TrainingConfig | None = None, **changes: Any) -> TrainingConfig:
    """A config with fields changed by their last names, whatever group they are in."""
    base = TrainingConfig() if base is None else base
    groups: dict[str, dict[str, Any]] = {name: {} for name in ("world", "learner", "lessons", "telemetry")}
    top: dict[str, Any] = {}
    for name, value in changes.items():
        group, _, last = _OTHER_NAMES.get(name, name).rpartition(".")
        if not group and name not in TrainingConfig.__dataclass_fields__:
            group = next(key for key in groups if last in getattr(base, key).__dataclass_fields__)
        (groups[group] if group else top)[last] = value
    parts = {group: replace(getattr(base, group), **fields) for group, fields in groups.items()}
    return replace(base, **(parts | top))


def normalizer_of(agent: PPOAgent) -> RunningMeanStd:
    """The statistics of an agent that has them."""
    assert agent.policy.normalizer is not None
    return agent.policy.normalizer
