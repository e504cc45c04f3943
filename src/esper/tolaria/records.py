"""Records of episodes: their settings, what a controller sees, what a step brings, what they end with.

At the end, hosts shared out over shards, and the records of shards joined to those of all hosts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import pairwise
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from esper.kasmina import UNLIMITED, ActionMasks, Catalogue, Site, SlotTable
from esper.leyline import DEFAULT_PRICE, InputError, objective, rent
from esper.tolaria.compute import ComputeSettings
from esper.tolaria.governor import GovernorSettings, SignalTable, TrackerSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EpisodeSettings:
    """How an episode runs; what is not given comes from the task."""

    length: int | None = None
    """Steps (host epochs) in the episode."""
    price: float | tuple[float, float] = DEFAULT_PRICE
    """What adding as many parameters as the host has costs; of a range, each episode draws log-uniformly."""
    budget: int | tuple[float, float] = UNLIMITED
    """The most parameters that all seeds together may add; of a range, in shares of the host's parameters, each episode
    draws log-uniformly."""
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
        for name, given in (("price", self.price), ("budget", self.budget)):
            if isinstance(given, tuple) and not 0 < given[0] <= given[1] < math.inf:
                raise InputError(f"a {name} range must be two numbers above 0, the lower one first; got {given}")
        if not isinstance(self.price, tuple) and not 0 <= self.price < math.inf:
            raise InputError(f"price must be a number of 0 or more; got {self.price}")
        number = isinstance(self.flop_price, int | float) and not isinstance(self.flop_price, bool)
        if not number or not 0 <= self.flop_price < math.inf:
            raise InputError(f"flop_price must be a number of 0 or more; got {self.flop_price!r}")
        for name in ("host_lr", "seed_lr_scale"):
            if (rate := getattr(self, name)) is not None and not 0 < rate < math.inf:
                raise InputError(f"{name} must be a finite number above 0; got {rate}")
        if not isinstance(self.budget, tuple) and self.budget < 0:
            raise InputError(f"budget must be 0 or more parameters; got {self.budget}")

    def draw_price(self, generator: torch.Generator) -> float:
        return _log_uniform(self.price, generator) if isinstance(self.price, tuple) else self.price

    def draw_budget(self, generator: torch.Generator, host_params: int) -> int:
        """In parameters."""
        if not isinstance(self.budget, tuple):
            return self.budget
        return min(UNLIMITED, int(host_params * _log_uniform(self.budget, generator)))


def _log_uniform(bounds: tuple[float, float], generator: torch.Generator) -> float:
    low, high = (math.log(bound) for bound in bounds)
    return math.exp(low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64)))


@dataclass(frozen=True, slots=True)
class Situation:
    """What a controller sees before it acts, for N hosts of one shape."""

    table: SlotTable
    signals: SignalTable
    masks: ActionMasks
    catalogue: Catalogue
    sites: tuple[Site, ...]
    host_params: int
    price: Tensor
    """`[N]`: what adding as many parameters as the host has costs."""
    budget: Tensor
    """`[N]`: the most parameters that all seeds of a host together may add."""
    episode_length: int
    host_flops: int = 1
    """Of one sample through the host; 1 where they were not counted, because nothing is charged for them."""
    flop_price: float = 0.0
    """What adding as many FLOPs as the host needs for a sample costs."""
    merit: Tensor | None = None
    """`[N, S, B]`: how much each kind would have to learn in each free slot (`kasmina/merit.py`), as last measured.

    NaN where that is not known, the slot is occupied, or the kind refines or does not fit; None where nobody measures.
    """
    input_correlation: float = math.nan
    """Of neighbouring positions of the host's input (`kasmina/neighbours.py`); NaN where there are none."""
    passes: float = math.nan
    """How often the episode goes through the training data; NaN where that is not known."""

    @property
    def steps_left(self) -> Tensor:
        """`[N]`: epochs that are still to come."""
        return self.episode_length - self.signals.epoch

    @property
    def planted_flops(self) -> Tensor:
        """`[N, S]`: what the seed in each slot adds to a forward pass of one sample; 0 without a seed."""
        return self.catalogue.planted_flops(self.table)

    def rent(self, params: Tensor, flops: Tensor) -> Tensor:
        """What so many parameters and FLOPs, each `[N, ...]` or the same for all hosts, `[1, ...]`, cost each host."""
        price = self.price.view(-1, *[1] * (params.ndim - 1))
        return rent(params, self.host_params, price, flops, self.host_flops, self.flop_price)

    @property
    def score(self) -> Tensor:
        """`[N]`: the latest validation score, known before the first epoch too."""
        return self.signals.score_history[:, -1]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one step of N hosts brought: everything that a reward may read.

    `after` is what the next decision sees, so the outcomes of an episode chain: the `after` of one is the
    `before` of the next.
    """

    before: Situation
    actions: Tensor
    """`[N, 4]` in `HEAD_NAMES` order."""
    after: Situation
    panicked: Tensor
    """`[N]` bool: the governor rolled this epoch back."""
    terminated: Tensor
    """`[N]` bool: the governor ended the episode."""
    truncated: Tensor
    """`[N]` bool: the episode reached its length."""
    final_score: Tensor
    """`[N]`: validation score of the committed network (unfinished seeds dropped); NaN before the episode's end."""
    final_loss: Tensor
    """`[N]`: its validation loss; NaN before the episode's end."""
    final_params: Tensor
    """`[N]`: parameters that the committed network adds; meaningful at the episode's end only."""
    final_flops: Tensor
    """`[N]`: FLOPs that it adds to a forward pass of one sample; likewise."""

    @property
    def ended(self) -> Tensor:
        """`[N]` bool: this was the last step of the episode."""
        return self.terminated | self.truncated


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


@dataclass(frozen=True, slots=True)
class Shard:
    """The hosts `first_host` to `first_host + num_hosts - 1` of an environment."""

    first_host: int
    num_hosts: int

    @property
    def hosts(self) -> slice:
        """Their places in tensors of all hosts."""
        return slice(self.first_host, self.first_host + self.num_hosts)

    def __contains__(self, host: int) -> bool:
        return 0 <= host - self.first_host < self.num_hosts


def share_out(num_hosts: int, parts: int) -> list[Shard]:
    """Consecutive shards whose sizes differ by one at most."""
    bounds = [num_hosts * part // parts for part in range(parts + 1)]
    return [Shard(first, after - first) for first, after in pairwise(bounds)]


def join(parts: Sequence[T]) -> T:
    """One record of all hosts from the records of consecutive shards.

    Tensors are over hosts and are joined; a catalogue and plain values tell of the kind of host, and are taken once.
    """
    return cast(T, _join(parts))


def _join(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    if isinstance(first, Catalogue):
        return first
    if isinstance(first, Mapping):
        return {name: _join([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(_join(column) for column in zip(*parts, strict=True)))
    if is_dataclass(first) and not isinstance(first, type):
        return type(first)(*(_join([getattr(part, spec.name) for part in parts]) for spec in fields(first)))
    if isinstance(first, int | float | str | tuple | None):
        return first
    raise TypeError(f"what shards say of their hosts must be tensors in dataclasses; got {type(first).__name__}")
