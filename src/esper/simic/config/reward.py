"""What a reward pays for: every number of every family, each with its unit and default.

Amounts are sizes, 0 or more; whether something is paid or charged is said in the sentence. *Points* are points of
quality: 100 points are a quality of 1.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Self

from esper.leyline import DEFAULT_GAMMA, InputError, Op, Stage
from esper.leyline.checks import check_amounts, check_field_types

PROXY_RATIO = 3.0
"""A true contribution weighs so many times as much as a proxy for it."""
_RATIO_TOLERANCE = 1e-9
GAMMA_TOLERANCE = 1e-9
"""Discounts that differ by more than this are not the same discount."""


class RewardFamily(StrEnum):
    """Ways to pay a controller."""

    OBJECTIVE = "objective"
    """The change of the objective in each step."""
    CONTRIBUTION = "contribution"
    """What seeds contribute, with discounts, costs and penalties."""
    SPARSE = "sparse"
    """The objective of the committed network, at the end alone."""
    LOSS = "loss"
    """The fall of the validation loss, for tasks whose score says little."""


@dataclass(frozen=True, slots=True)
class _Checked:
    """A config whose fields have their types and whose numbers are finite and not negative."""

    def __post_init__(self) -> None:
        check_field_types(self)
        check_amounts(self)


@dataclass(frozen=True, slots=True)
class ShapingConfig(_Checked):
    """Potential-based shaping: a hint that cannot change which policy is best."""

    weight: float = 0.0
    """What one unit of potential is worth; 0 switches shaping off."""
    stages: tuple[float, ...] = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 0.0)
    """Potential of a slot by stage, DORMANT to EMBARGOED."""
    per_epoch: float = 0.1
    """Potential that each epoch in a stage adds in an occupied slot."""
    max_epochs: int = 5
    """Epochs in a stage beyond which nothing more is added."""

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        if len(self.stages) != len(Stage):
            raise InputError(f"ShapingConfig.stages needs {len(Stage)} values, one per stage; got {len(self.stages)}")


@dataclass(frozen=True, slots=True)
class ChecksConfig(_Checked):
    """When a seed looks as if it were gaming its credit; checked in every family."""

    ransomware_contribution: float = 2.0
    """Contribution in points above which a seed is suspected if the network became worse by `ransomware_harm`."""
    ransomware_harm: float = 1.0
    """Points that the network must have lost since a seed germinated for it to be suspected of making itself needed."""
    hacking_contribution: float = 2.0
    """Contribution in points above which a seed is suspected if it is `hacking_ratio` times the total improvement."""
    hacking_ratio: float = 5.0
    """Ratio of contribution to total improvement above which a seed is suspected of being credited with too much."""
    improvement_safe_threshold: float = 0.1
    """Points: a ratio to the total improvement is formed only above this."""
    penalty: float = 0.0
    """Charged in each step for each seed that a check flags, in units of the reward; 0: it is only reported."""


@dataclass(frozen=True, slots=True)
class ContributionConfig(_Checked):
    """The *contribution* family; all amounts in points."""

    weight: float = 1.0
    """Of a seed's measured contribution."""
    proxy_weight: float | None = None
    """Of the network's gain until a seed is measured; None: a third of `weight`, and nothing else is allowed."""
    contribution_limit: float = 20.0
    """Most that one seed is credited or charged with in a step, before discounts."""
    ransomware_factor: float = 0.5
    """A seed that made itself needed is charged so many times what it seems to contribute."""
    ratio_limit: float = 3.0
    """Ratio of contribution to total improvement above which a seed is charged."""
    ratio_weight: float = 0.5
    """Charge for each unit by which that ratio exceeds `ratio_limit`."""
    ratio_cap: float = 5.0
    """Most that one seed is charged for its ratio."""
    fossilize_bonus: float = 1.0
    """Paid for keeping a seed, times its contribution if that is positive."""
    legitimacy_epochs: int = 2
    """Epochs in HOLDING after which keeping a seed earns the whole bonus."""
    germinate_cost: float = 0.2
    """Cost of germinating a seed."""
    fossilize_cost: float = 0.1
    """Cost of keeping a seed for good."""
    cull_cost: float = 0.1
    """Cost of culling a seed."""
    holding_start: int = 2
    """Epoch in HOLDING from which indecision is charged."""
    holding_penalty: float = 1.0
    """What that first epoch is charged."""
    holding_step: float = 1.0
    """What each further epoch is charged more than the one before."""
    holding_cap: float = 10.0
    """Most that one epoch of indecision is charged."""
    cull_weight: float = 0.1
    """Culling pays this times the points that the seed took away, and charges as much for those that it gave."""
    cull_bound: float = 1.0
    """Most that culling one seed pays or charges."""
    rent_weight: float = 1.0
    """Of the rent, which is charged in every step."""
    end_weight: float = 0.1
    """Of the objective of the committed network, paid at the end."""

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        given = self.proxy_weight
        if given is not None and abs(given * PROXY_RATIO - self.weight) > _RATIO_TOLERANCE:
            raise InputError(
                f"ContributionConfig.proxy_weight must be weight / {PROXY_RATIO:g} = {self.weight / PROXY_RATIO:g}; "
                f"got {given}. Leave it out to have it derived"
            )

    @property
    def proxy(self) -> float:
        """The weight of the proxy, given or derived."""
        return self.weight / PROXY_RATIO

    @property
    def intervention_costs(self) -> Mapping[Op, float]:
        """Cost of each op; waiting is free."""
        costs = {
            Op.WAIT: 0.0,
            Op.GERMINATE: self.germinate_cost,
            Op.FOSSILIZE: self.fossilize_cost,
            Op.CULL: self.cull_cost,
        }
        return MappingProxyType(costs)


INTERVENTION_COSTS = ContributionConfig().intervention_costs
"""The default costs, read off the config."""


@dataclass(frozen=True, slots=True)
class SparseConfig(_Checked):
    """The *sparse* family."""

    sparse_reward_scale: float = 1.0
    """Multiplies the objective of the committed network, which is cut to [-1, 1] before."""


@dataclass(frozen=True, slots=True)
class LossConfig(_Checked):
    """The *loss* family: facts about the validation loss of a task."""

    best_loss: float
    """What a good network of this kind reaches."""
    worst_loss: float
    """Where an untrained network starts; between the two lies a quality of 1, and what is worse counts as this."""
    baseline_loss: float
    """Stands for the loss before the first epoch, usually that of guessing."""
    typical_delta: float
    """By how much the loss falls in an ordinary epoch: the unit of the reward."""

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        if not self.best_loss < self.worst_loss:
            raise InputError(f"LossConfig.worst_loss must exceed best_loss = {self.best_loss}; got {self.worst_loss}")
        if self.baseline_loss > self.worst_loss:
            raise InputError(
                f"LossConfig.baseline_loss must be at most worst_loss = {self.worst_loss}; got {self.baseline_loss}"
            )
        if self.typical_delta == 0:
            raise InputError("LossConfig.typical_delta must be more than 0: it is the unit of the reward")

    @property
    def deltas_per_quality(self) -> float:
        """Typical deltas in a quality of 1."""
        return (self.worst_loss - self.best_loss) / self.typical_delta

    @classmethod
    def of_classes(cls, classes: int, best_loss: float = 0.0, typical_delta: float | None = None) -> Self:
        """For a task with so many answers to guess among: an untrained network guesses.

        Without a typical delta, twenty ordinary epochs lead from guessing to no loss at all.
        """
        if classes < 2:
            raise InputError(f"classes must be 2 or more; got {classes}")
        guess = math.log(classes)
        return cls(best_loss, guess, guess, 0.05 * guess if typical_delta is None else typical_delta)


@dataclass(frozen=True, slots=True)
class RewardConfig(_Checked):
    """The family and all that it may need."""

    family: RewardFamily = RewardFamily.OBJECTIVE
    """What is paid for: the objective in each step, contributions of seeds, the end alone, or the fall of the loss."""
    gamma: float = DEFAULT_GAMMA
    """Discount of the shaping; it must be that of the learner (`check_learner`)."""
    scale: float = 1.0
    """Multiplies every component."""
    governor_penalty: float = 0.0
    """Charged for an epoch that the governor took back, in units of the family."""
    holding_cost: float = 0.0
    """Charged for every epoch that a seed spends in HOLDING, in units of the family: makes deciding better than not."""
    horizon_is_terminal: bool = True
    """Whether the time limit ends the problem, as it does in growth: the potential behind it is then 0. It must be that
    of the learner."""
    shaping: ShapingConfig = field(default_factory=ShapingConfig)
    checks: ChecksConfig = field(default_factory=ChecksConfig)
    contribution: ContributionConfig = field(default_factory=ContributionConfig)
    sparse: SparseConfig = field(default_factory=SparseConfig)
    loss: LossConfig | None = None
    """Needed by the *loss* family: see `loss_config` and `LossConfig.of_classes`."""

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        if self.gamma > 1:
            raise InputError(f"RewardConfig.gamma must be 0 to 1; got {self.gamma}")
        if self.family is RewardFamily.LOSS and self.loss is None:
            raise InputError("RewardConfig.loss is needed by the loss family: give facts of the task's loss")


def check_learner(reward: RewardConfig, gamma: float, horizon_is_terminal: bool) -> None:
    """Refuse a reward whose discount or whose end of the problem is not that of the learner it pays.

    With two discounts, shaping would change which policy is best.
    """
    if not abs(reward.gamma - gamma) <= GAMMA_TOLERANCE:
        raise InputError(f"reward gamma {reward.gamma} and PPO gamma {gamma} differ; give both the same value")
    if reward.horizon_is_terminal != horizon_is_terminal:
        raise InputError(
            f"horizon_is_terminal is {reward.horizon_is_terminal} for the reward and {horizon_is_terminal} for PPO; "
            "give both the same value"
        )
