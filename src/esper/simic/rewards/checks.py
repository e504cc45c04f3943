"""Checks in the path of every reward: does a seed only look as if it helped?

The checks themselves are computed for all hosts at once; only what they flag, which is rare, is emitted one by one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from esper.leyline import DIVISION_GUARD, POINTS
from esper.nissa import Hub
from esper.nissa.events import RansomwareSuspected, RewardHackingSuspected
from esper.simic.config.reward import ChecksConfig
from esper.tolaria import Outcome


@dataclass(frozen=True, slots=True)
class GamingFlags:
    """Which seeds look suspicious after a step; all fields are `[N, S]`."""

    ransomware: Tensor
    """The seed matters much to a network that is worse than before it came."""
    hacking: Tensor
    """The seed is credited with far more than the whole network has gained."""
    ratio: Tensor
    """Contribution / total improvement; NaN where it is not formed."""

    @property
    def any(self) -> Tensor:
        """Either of the two."""
        return self.ransomware | self.hacking


def judged_seeds(outcome: Outcome) -> Tensor:
    """`[N, S]` bool: seeds that the last epoch showed something of; a rolled-back epoch shows nothing."""
    return outcome.after.table.occupied & ~outcome.panicked[:, None]


def improvement_ratio(contribution: Tensor, improvement: Tensor, safe_threshold: float) -> Tensor:
    """`contribution / improvement`, in points, NaN unless the improvement is safely above 0."""
    formed = improvement > max(safe_threshold, DIVISION_GUARD)
    return torch.where(formed, contribution / torch.where(formed, improvement, 1.0), torch.nan)


def _check_ransomware_signature(contribution: Tensor, improvement: Tensor, config: ChecksConfig) -> Tensor:
    """`[N, S]` bool: high contribution in points, yet the whole has become worse."""
    return (contribution > config.ransomware_contribution) & (improvement < -config.ransomware_harm)


def _check_reward_hacking(contribution: Tensor, ratio: Tensor, config: ChecksConfig) -> Tensor:
    """`[N, S]` bool: contribution far above the total improvement."""
    return (contribution > config.hacking_contribution) & (ratio > config.hacking_ratio)


def check_seeds(outcome: Outcome, config: ChecksConfig) -> GamingFlags:
    """Both checks for every seed of every host."""
    judged = judged_seeds(outcome)
    table = outcome.after.table
    contribution = torch.where(judged, POINTS * table.contribution.double(), torch.nan)
    improvement = POINTS * table.improvement.double()
    ratio = improvement_ratio(contribution, improvement, config.improvement_safe_threshold)
    return GamingFlags(
        _check_ransomware_signature(contribution, improvement, config),
        _check_reward_hacking(contribution, ratio, config),
        ratio,
    )


def emit_flags(flags: GamingFlags, outcome: Outcome, hub: Hub, first_env: int = 0) -> None:
    """Tell `hub` of every flagged seed; host n of `outcome` is environment `first_env` + n."""
    kinds = (
        (RansomwareSuspected, flags.ransomware),
        (RewardHackingSuspected, flags.hacking),
    )
    after = outcome.after
    for suspicion, flagged in kinds:
        for host, slot in flagged.nonzero().tolist():
            ratio = float(flags.ratio[host, slot])
            payload = suspicion(
                epoch=int(after.signals.epoch[host]),
                contribution=POINTS * float(after.table.contribution[host, slot]),
                total_improvement=POINTS * float(after.table.improvement[host, slot]),
                ratio=None if ratio != ratio else ratio,
            )
            hub.tell(payload, env_id=first_env + host, slot_id=after.sites[slot].slot_id)
