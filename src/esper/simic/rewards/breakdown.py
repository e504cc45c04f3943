"""A reward with its parts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from esper.leyline import DIVISION_GUARD, REWARD_LIMIT
from esper.simic.rewards.checks import GamingFlags

SHAPING_TERMS = frozenset({"shaping", "cull_shaping"})
"""Components that guide and do not measure: the numerator of `shaped_reward_ratio`."""


def bounded(term: Tensor) -> Tensor:
    """`term` made safe to pay: what cannot be known pays nothing, and nothing exceeds ±`REWARD_LIMIT`."""
    return torch.where(term.isfinite(), term, 0.0).clamp(-REWARD_LIMIT, REWARD_LIMIT)


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
