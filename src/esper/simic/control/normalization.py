"""Running statistics of observations, returns and rewards.

Not thread-safe: one writer, and readers only between its updates. Everything runs on the device of the tensors, and
neither `update` nor `normalize` waits for it.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from esper.leyline import DIVISION_GUARD, InputError
from esper.nissa.state_files import checked_keys, checked_number, checked_tensor, checked_whole
from esper.simic.control.anatomy import Anatomy, num_features

NORMALIZED_LIMIT = 10.0
"""Normalised observations and rewards are cut at this many standard deviations."""
_NEVER_VARIED = 1e-8
"""A variance that is no more than rounding."""


class RunningMeanStd:
    """Mean and variance `[*shape]` of all samples seen, or with `momentum` an exponential average over batches.

    The statistics are double precision, so that a mean of 1e6 leaves the variance intact. They are changed in place:
    `update` runs under inference mode, and a tensor created there could never enter autograd again. Samples that hold
    NaN or infinity are left out; one bad observation must not spoil all later ones.
    """

    def __init__(
        self, shape: tuple[int, ...] = (), device: torch.device | str = "cpu", *, momentum: float | None = None
    ) -> None:
        if momentum is not None and not 0.0 <= momentum < 1.0:
            raise InputError(f"momentum {momentum} is outside [0, 1)")
        self.momentum = momentum
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.var = torch.ones(shape, dtype=torch.float64, device=device)
        self.count = torch.zeros((), dtype=torch.float64, device=device)

    @property
    def device(self) -> torch.device:
        """Where the statistics live."""
        return self.mean.device

    def to(self, device: torch.device | str) -> "RunningMeanStd":
        """Move the statistics; returns itself."""
        self.mean, self.var, self.count = (part.to(device) for part in (self.mean, self.var, self.count))
        return self

    @torch.inference_mode()
    def update(self, x: Tensor) -> None:
        """Take in a batch `[..., *shape]`."""
        rows = x.detach().to(self.device, torch.float64).reshape(-1, self.mean.numel())
        finite = rows.isfinite().all(-1, keepdim=True)
        count = finite.sum().to(torch.float64)
        mean = torch.where(finite, rows, 0.0).sum(0) / count.clamp(min=1.0)
        var = torch.where(finite, (rows - mean).square(), 0.0).sum(0) / count.clamp(min=1.0)
        self._merge(mean.reshape(self.mean.shape), var.reshape(self.var.shape), count)

    def _merge(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Both modes mix two distributions; `share` is the weight of the new one. An empty batch weighs 0."""
        total = self.count + count
        share = count / total.clamp(min=1.0)
        if self.momentum is not None:
            later = torch.where(count > 0, 1.0 - self.momentum, 0.0)
            share = torch.where(self.count > 0, later, share)
        shift = mean - self.mean
        # The variance of a mixture holds the distance of its means; without this term a shift would look like none.
        self.var.mul_(1.0 - share).add_(share * var + share * (1.0 - share) * shift.square())
        self.mean.add_(share * shift)
        self.count.copy_(total)

    def normalize(self, x: Tensor) -> Tensor:
        """`x` in standard deviations from the mean, cut at ±`NORMALIZED_LIMIT`; unchanged scale before any update."""
        scaled = (x - self.mean) / (self.var + DIVISION_GUARD).sqrt()
        return scaled.clamp(-NORMALIZED_LIMIT, NORMALIZED_LIMIT).to(x.dtype)

    def check(self, state: object, place: str = "the state of the normaliser") -> None:
        """Refuse what is not the saved state of such statistics, and name the place."""
        parts = checked_keys(state, ("mean", "var", "count"), place)
        for name, like in (("mean", self.mean), ("var", self.var), ("count", self.count)):
            numbers = checked_tensor(parts[name], f"{place}.{name}", tuple(like.shape), torch.float64)
            if name != "mean" and bool((numbers < 0).any()):
                raise InputError(f"{place}.{name} must be 0 or more")

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the statistics."""
        return {"mean": self.mean.clone(), "var": self.var.clone(), "count": self.count.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy the statistics in `state` to the own device; a state that does not fit changes nothing."""
        self.check(state)
        self.mean.copy_(state["mean"])
        self.var.copy_(state["var"])
        self.count.copy_(state["count"])


class SharedMeanStd(RunningMeanStd):
    """Statistics of the features of an anatomy, each shared by all slots or kinds that have it.

    Padding counts nowhere and stays 0. Flags stay as they are. A feature that has never varied becomes 0: no weight has
    learned what another value of it means.
    """

    def __init__(self, anatomy: Anatomy, device: torch.device | str = "cpu") -> None:
        super().__init__((num_features(),), device)
        self.count = torch.zeros(num_features(), dtype=torch.float64, device=device)
        self.anatomy = anatomy

    def of(self, anatomy: Anatomy) -> "SharedMeanStd":
        """The same statistics, for rows of another anatomy."""
        other = SharedMeanStd(anatomy, self.device)
        other.mean, other.var, other.count = self.mean, self.var, self.count
        return other

    @torch.inference_mode()
    def update(self, x: Tensor) -> None:
        """Take in a batch `[..., D]`."""
        rows = x.detach().to(self.device, torch.float64).reshape(-1, self.anatomy.width)
        there = self.anatomy.present(rows) & rows.isfinite().all(-1, keepdim=True)
        count = self._by_feature(there.double())
        mean = self._by_feature(torch.where(there, rows, 0.0)) / count.clamp(min=1.0)
        distance = rows - mean[self._feature]
        var = self._by_feature(torch.where(there, distance.square(), 0.0)) / count.clamp(min=1.0)
        self._merge(mean, var, count)

    def normalize(self, x: Tensor) -> Tensor:
        """`x` in standard deviations from the mean, cut at ±`NORMALIZED_LIMIT`."""
        mean, var = self.mean[self._feature], self.var[self._feature]
        scaled = ((x - mean) / (var + DIVISION_GUARD).sqrt()).clamp(-NORMALIZED_LIMIT, NORMALIZED_LIMIT)
        kept = torch.where(var > _NEVER_VARIED, scaled, 0.0).to(x.dtype)
        flags = self.anatomy.flags.to(x.device)
        return torch.where(flags, x, torch.where(self.anatomy.present(x), kept, 0.0))

    @property
    def _feature(self) -> Tensor:
        return self.anatomy.feature.to(self.device)

    def _by_feature(self, rows: Tensor) -> Tensor:
        """`[F]`: the sum of all columns of `rows [n, D]` that hold a feature."""
        return torch.zeros_like(self.mean).index_add_(0, self._feature, rows.sum(0))


class RewardNormalizer:
    """Scales single rewards by their running standard deviation (Welford) and cuts them at ±`clip`.

    The mean is not subtracted: that would pay or charge for every further step and so change what is optimal. A
    non-finite reward is handed back as it is and leaves the statistics alone.
    """

    def __init__(self, clip: float = NORMALIZED_LIMIT) -> None:
        self.clip = clip
        self.mean = 0.0
        self.m2 = 0.0
        self.count = 0

    @property
    def std(self) -> float:
        """Standard deviation so far; 1 until two different rewards were seen."""
        return math.sqrt(self.m2 / self.count) if self.m2 > 0.0 else 1.0

    def update_and_normalize(self, x: float) -> float:
        """Take in `x`, then normalise it."""
        if math.isfinite(x):
            self.count += 1
            delta = x - self.mean
            self.mean += delta / self.count
            self.m2 += delta * (x - self.mean)
        return self.normalize_only(x)

    def normalize_only(self, x: float) -> float:
        """Normalise `x` and leave the statistics alone."""
        if not math.isfinite(x):
            return x
        return max(-self.clip, min(self.clip, x / max(self.std, DIVISION_GUARD)))

    def state_dict(self) -> dict[str, float]:
        """The statistics as plain numbers."""
        return {"mean": self.mean, "m2": self.m2, "count": self.count}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """The inverse of `state_dict`."""
        parts = checked_keys(state, ("mean", "m2", "count"), "the state of the normaliser")
        mean = checked_number(parts["mean"], "the state of the normaliser.mean")
        m2 = checked_number(parts["m2"], "the state of the normaliser.m2", 0)
        self.mean, self.m2, self.count = mean, m2, checked_whole(parts["count"], "the state of the normaliser.count")


SCALE_MOMENTUM = 0.9
"""Share of the old statistics that each update keeps: returns grow as the policy improves, the scale follows."""
SCALE_FLOOR = 1e-4
"""Returns smaller than this are taken as nothing, not blown up."""


class ReturnScale:
    """The running scale of returns. When it moves, the value head is rescaled so that its predictions do not.

    Policy and value share a trunk. If returns are in the hundreds, the value gradient drowns the policy's; if they are
    thousandths, the value learns nothing. So the value head predicts returns divided by their root mean square.
    """

    def __init__(self, device: torch.device, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self._statistics = RunningMeanStd((), device, momentum=SCALE_MOMENTUM)

    @property
    def scale(self) -> Tensor:
        """What scaled values are multiplied with to give returns; 1 before the first update."""
        if not self.enabled:
            return torch.ones((), device=self._statistics.device)
        # Root mean square and not standard deviation: constant returns have a size but no spread.
        return (self._statistics.var + self._statistics.mean.square()).sqrt().clamp(min=SCALE_FLOOR).float()

    @torch.no_grad()
    def update(self, returns: Tensor, value_layer: nn.Linear) -> None:
        """Take in `returns [M]`; `value_layer` then gives the same raw values as before under the new scale."""
        if self.enabled:
            old = self.scale
            self._statistics.update(returns)
            value_layer.weight.mul_(old / self.scale)
            value_layer.bias.mul_(old / self.scale)

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the statistics."""
        return self._statistics.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `state_dict`."""
        self._statistics.load_state_dict(state)
