"""From an outcome to what it pays: the one place where families, shaping and checks meet."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from esper.leyline import DIVISION_GUARD, REWARD_LIMIT, Stage
from esper.simic.config.reward import RewardConfig, RewardFamily
from esper.simic.rewards.checks import GamingFlags, check_seeds
from esper.simic.rewards.terms import (
    Terms,
    bounded,
    contribution_terms,
    loss_terms,
    objective_terms,
    shaping_term,
    sparse_terms,
)
from esper.tolaria import Outcome

SHAPING_TERMS = frozenset({"shaping", "cull_shaping"})
"""Components that guide and do not measure: the numerator of `shaped_reward_ratio`."""


@dataclass(frozen=True, slots=True)
class RewardBreakdown:
    """What each of N hosts is paid in one step, and for what. Double precision, so that episodes sum up exactly."""

    components: Mapping[str, Tensor]
    """Name to `[N]`; they add up to `total`."""
    total: Tensor
    """`[N]`."""
    flags: GamingFlags

    @classmethod
    def of(cls, terms: Mapping[str, Tensor], scale: float, flags: GamingFlags) -> Self:
        """From terms `[N]`, each of which is made finite and then scaled."""
        scaled = {name: scale * bounded(term.double()) for name, term in terms.items()}
        components = {name: term.clamp(-REWARD_LIMIT, REWARD_LIMIT) for name, term in scaled.items()}
        return cls(components, torch.stack(list(components.values())).sum(0), flags)

    @property
    def shaped_reward_ratio(self) -> Tensor:
        """`[N]`, in [0, 1]: Σ|shaping terms| / Σ|all terms|, 0 where all terms are next to nothing."""
        sizes = {name: component.abs() for name, component in self.components.items()}
        everything = torch.stack(list(sizes.values())).sum(0)
        shaped = sum((size for name, size in sizes.items() if name in SHAPING_TERMS), torch.zeros_like(everything))
        paid = everything >= DIVISION_GUARD
        return torch.where(paid, shaped / torch.where(paid, everything, 1.0), 0.0).clamp(0.0, 1.0)


Reward = Callable[[Outcome], RewardBreakdown]
"""A pure function: the same outcome pays the same, and nothing is remembered between steps."""


def make_reward(config: RewardConfig | None = None) -> Reward:
    """The reward that `config` describes."""
    chosen = config or RewardConfig()

    def reward(outcome: Outcome) -> RewardBreakdown:
        flags = check_seeds(outcome, chosen.checks)
        terms = _family_terms(outcome, flags, chosen)
        terms["governor"] = -chosen.governor_penalty * outcome.panicked.double()
        terms["indecision"] = -chosen.holding_cost * _held_seeds(outcome)
        terms["gaming"] = -chosen.checks.penalty * flags.any.sum(1).double()
        terms["shaping"] = shaping_term(outcome, chosen)
        return RewardBreakdown.of(terms, chosen.scale, flags)

    return reward


def _held_seeds(outcome: Outcome) -> Tensor:
    """`[N]`: seeds that wait to be kept or culled, but for those of an epoch taken back."""
    held = (outcome.after.table.stage == Stage.HOLDING).sum(1)
    return torch.where(outcome.panicked, 0, held).double()


def _family_terms(outcome: Outcome, flags: GamingFlags, config: RewardConfig) -> Terms:
    match config.family:
        case RewardFamily.OBJECTIVE:
            return objective_terms(outcome)
        case RewardFamily.CONTRIBUTION:
            return contribution_terms(outcome, flags, config.contribution)
        case RewardFamily.SPARSE:
            return sparse_terms(outcome, config.sparse)
        case RewardFamily.LOSS:
            assert config.loss is not None  # the config refuses this
            return loss_terms(outcome, config.loss)
