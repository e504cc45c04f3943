"""How an episode runs, and what it ended with."""

import math
from dataclasses import dataclass, field

import torch

from esper.kasmina import UNLIMITED
from esper.leyline import DEFAULT_PRICE, InputError, objective
from esper.tolaria.compute import ComputeSettings
from esper.tolaria.governor import GovernorSettings
from esper.tolaria.signals import TrackerSettings


def check_flop_price(flop_price: float) -> None:
    if isinstance(flop_price, bool) or not isinstance(flop_price, int | float) or not 0 <= flop_price < math.inf:
        raise InputError(f"flop_price must be a number of 0 or more; got {flop_price!r}")


@dataclass(frozen=True, slots=True)
class EpisodeSettings:
    """How an episode runs; what is not given comes from the task."""

    length: int | None = None
    """Steps (host epochs) in the episode."""
    price: float | tuple[float, float] = DEFAULT_PRICE
    """What adding as many parameters as the host has costs; of a range, each episode draws log-uniformly."""
    budget: int = UNLIMITED
    """The most parameters that all seeds together may add."""
    batches_per_epoch: int | None = None
    """Minibatches in a step."""
    batch_size: int | None = None
    """Samples per minibatch of a host's training."""
    host_lr: float | None = None
    """Learning rate of the host."""
    germinate_when_stable: bool = False
    """Whether nothing may germinate in a host before it counts as stable (`TrackerSettings`)."""
    what_if: bool = False
    """Whether events also tell what each isolated seed would bring at alpha 1; nothing else reads it."""
    merit: bool = True
    """Whether the merit of would-be seeds is measured after 1, 2, 4, 8, … epochs (`Situation.merit`)."""
    flop_price: float = 0.0
    """What adding as many FLOPs as the host needs for a sample costs, beside the price of parameters."""
    seed_lr_scale: float | None = None
    """Learning rate of seeds relative to the host's; None: the task's own."""
    governor: GovernorSettings = field(default_factory=GovernorSettings)
    tracker: TrackerSettings = field(default_factory=TrackerSettings)
    compute: ComputeSettings = field(default_factory=ComputeSettings)

    def __post_init__(self) -> None:
        if self.length is not None and self.length < 1:
            raise InputError(f"episode length must be 1 or more; got {self.length}")
        for name in ("batches_per_epoch", "batch_size"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise InputError(f"{name} must be 1 or more; got {count}")
        if isinstance(self.price, tuple):
            low, high = self.price
            if not 0 < low <= high < math.inf:
                raise InputError(f"a price range must be two numbers above 0, the lower one first; got {self.price}")
        elif not 0 <= self.price < math.inf:
            raise InputError(f"price must be a number of 0 or more; got {self.price}")
        check_flop_price(self.flop_price)
        for name in ("host_lr", "seed_lr_scale"):
            if (rate := getattr(self, name)) is not None and not 0 < rate < math.inf:
                raise InputError(f"{name} must be a finite number above 0; got {rate}")
        if self.budget < 0:
            raise InputError(f"budget must be 0 or more parameters; got {self.budget}")

    def draw_price(self, generator: torch.Generator) -> float:
        if not isinstance(self.price, tuple):
            return self.price
        low, high = (math.log(bound) for bound in self.price)
        return math.exp(low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64)))


@dataclass(frozen=True, slots=True)
class Kept:
    """A seed that was kept for good."""

    path: str
    slot_id: str
    blueprint: str
    params: int


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """What an episode ended with: the network that an export would give."""

    val_score: float
    test_score: float
    host_params: int
    added_params: int
    price: float
    kept: tuple[Kept, ...]
    panics: int
    host_flops: int
    """Of a forward pass of one sample."""
    added_flops: int
    flop_price: float

    @property
    def val_objective(self) -> float:
        """The objective on the validation split: what a controller is to maximise."""
        return self._objective(self.val_score)

    @property
    def test_objective(self) -> float:
        """The objective on the test split: what is reported."""
        return self._objective(self.test_score)

    def _objective(self, score: float) -> float:
        params = self.added_params, self.host_params, self.price
        return objective(score, *params, self.added_flops, self.host_flops, self.flop_price)
