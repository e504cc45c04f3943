"""What all executors share: their protocol, losses and schedules, and the random streams of a host."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina import Catalogue, GraftedModel, Site, SlotTable, graft_again
from esper.kasmina.merit import VARIANTS
from esper.tasks import OptimizerSettings, Split, Task

_WARM_UP_EPOCHS = 2
_DECAY_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class EpochResult:
    """What training N hosts for one epoch showed; means over its minibatches."""

    loss: Tensor
    """`[N]`"""
    score: Tensor
    """`[N]`: quality on the minibatches, as they came."""
    host_grad_norm: Tensor
    """`[N]`: before clipping."""
    seed_grad_norms: Tensor
    """`[N, S]`: 0 where a slot is empty."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What validating N hosts showed."""

    loss: Tensor
    """`[N]`"""
    score: Tensor
    """`[N]`: quality in [0, 1]."""
    contributions: Tensor
    """`[N, S]`: the score minus the score without that seed; NaN where no seed is blended."""
    prospects: Tensor
    """`[N, S]`: the score with that isolated seed at alpha 1 minus the score; NaN unless asked for."""
    trials: Tensor
    """`[N, S]`: the score with that seed at the alpha to be tried minus the score; NaN where none was to be tried.

    A network that is no longer finite with it counts as one without any quality.
    """


class Executor(Protocol):
    """Runs the networks of N hosts of one shape. The slot table says what is planted; executors make it so."""

    sites: tuple[Site, ...]
    catalogue: Catalogue
    host_params: int

    def start(self, hosts: Sequence[int], seeds: Sequence[int]) -> None:
        """Put fresh hosts without seeds in these places, each initialised and shuffled from its seed."""

    def follow(self, table: SlotTable) -> None:
        """Make what is planted, and how it is blended, what `table` says."""

    def train_epoch(self) -> EpochResult:
        """Train every host for one epoch."""

    def measure(self, split: Split, *, what_if: bool = False, trials: Tensor | None = None) -> Measurement:
        """Validate every host with and without each blended seed; with `what_if`, with isolated ones at alpha 1 too.

        `trials [N, S]` are alphas at which single seeds are tried as well; NaN where they are not.
        """

    def measure_merit(self, hosts: Tensor) -> Tensor:
        """`[N, S, B]`: merit (`kasmina/merit.py`) of kinds that connect in free slots of `hosts [N]` (bool), else NaN.

        On the first samples of each host's last minibatch, so after an epoch; training goes on as if it had not been.
        """

    def remember(self, hosts: Tensor) -> None:
        """Keep the present state of `hosts [N]` (bool) as their last good one."""

    def restore(self, hosts: Tensor, table: SlotTable) -> None:
        """Return `hosts [N]` (bool) to their last good state, bit for bit; `table` is all hosts' table after that."""

    def network(self, host: int) -> GraftedModel:
        """The network of one host as a module; not to be trained further."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that going on needs, as tensors in plain containers."""

    def load_state_dict(self, state: Mapping[str, Any], table: SlotTable) -> None:
        """Go on from a saved state, whose table was `table`."""


def learning_rate(settings: OptimizerSettings, step: int, steps_per_epoch: int, total_steps: int) -> float:
    """The learning rate of minibatch `step`, counted from 0, in an episode of `total_steps`."""
    if settings.schedule == "constant":
        return settings.lr
    warm_up = min(1.0, (step + 1) / (_WARM_UP_EPOCHS * steps_per_epoch))
    if settings.schedule == "wsd":
        return settings.lr * min(warm_up, (total_steps - step) / (_DECAY_SHARE * total_steps))
    return settings.lr * warm_up * 0.5 * (1 + math.cos(math.pi * step / total_steps))


def samples_at_once(sites: Sequence[Site], rows: int, max_elements: int) -> int:
    """How many samples can be validated together, if no activation of `rows` networks may have more elements."""
    largest = max(torch.Size(site.shape.tensor_shape(1)).numel() for site in sites)
    return max(1, max_elements // (rows * largest))


def losses_and_accuracies(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean loss and share of right answers of each of R rows, for logits `[R, B, ..., C]` and labels `[R, B, ...]`.

    NaN has an argmax too, the class of its place, so an answer counts as right only if its loss is finite.
    """
    losses = F.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction="none").view(len(logits), -1)
    right = (logits.detach().argmax(-1) == y).flatten(1) & (losses < math.inf)
    return losses.mean(1), right.to(logits.dtype).mean(1)


def score_of(task: Task, loss: Tensor, accuracy: Tensor) -> Tensor:
    """The quality in [0, 1] that the task asks for: accuracy, or how far the loss is below guessing."""
    return accuracy if task.quality == "accuracy" else (1 - loss / task.guess_loss).clamp(0.0, 1.0)


def flatten(module: nn.Module) -> Tensor:
    """All parameters of a module in one row."""
    return torch.cat([torch.empty(0), *(parameter.detach().flatten() for parameter in module.parameters())])


def network_of(
    task: Task,
    dtype: torch.dtype,
    sites: tuple[Site, ...],
    row: SlotTable,
    weights: Tensor,
    seeds: Mapping[int, Tensor],
) -> GraftedModel:
    """A host as a module, from its flattened parameters and, by slot, those of its seeds; `row` is its table."""
    with torch.random.fork_rng(devices=[]):
        host = task.build_host().to(dtype)
    model = graft_again(host, sites)
    model.follow(row)
    _unflatten([host.get_submodule(part) for part in host.parts], weights)
    for slot, own in seeds.items():
        _unflatten([model.slots[slot].get_submodule("seed")], own)
    return model


@torch.no_grad()
def _unflatten(modules: Sequence[nn.Module], row: Tensor) -> None:
    parameters = [parameter for module in modules for parameter in module.parameters()]
    for parameter, piece in zip(parameters, row.split([p.numel() for p in parameters]), strict=True):
        parameter.copy_(piece.view_as(parameter))


@dataclass(frozen=True, slots=True)
class Streams:
    """The random streams of one host, all derived from one seed."""

    init: torch.Generator
    """Initial weights of the host."""
    shuffle: torch.Generator
    """Order of its minibatches."""
    seeds: torch.Generator
    """Initial weights of its seeds."""
    price: torch.Generator
    """What its parameters cost, where that is drawn."""
    merit: torch.Generator
    """Which of the would-be seeds it has; nothing is drawn from it, so that they stay the same all along."""
    budget: torch.Generator
    """What its seeds may add, where that is drawn."""

    @classmethod
    def from_seed(cls, seed: int) -> Self:
        """Streams that are independent of each other and of those of any other seed."""
        states = np.random.SeedSequence(seed).generate_state(len(fields(cls)), np.uint64)
        return cls(*(torch.Generator().manual_seed(int(state >> np.uint64(1))) for state in states))

    @property
    def variant(self) -> int:
        """Which variant of would-be seeds the host has."""
        return self.merit.initial_seed() % VARIANTS

    def state_dict(self) -> dict[str, Tensor]:
        return {spec.name: getattr(self, spec.name).get_state() for spec in fields(self)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for spec in fields(self):
            getattr(self, spec.name).set_state(state[spec.name])


class BatchStream:
    """Minibatches of a host's own shuffled passes over the training split, endless across epochs."""

    def __init__(self, num_samples: int, batch_size: int, generator: torch.Generator) -> None:
        self._num_samples = num_samples
        self._batch_size = batch_size
        self._generator = generator
        self._order = torch.empty(0, dtype=torch.int64)
        self._used = 0

    def __next__(self) -> Tensor:
        """Indices of the next minibatch; what is left of a pass and too small is skipped."""
        if self._used + self._batch_size > len(self._order):
            self._order = torch.randperm(self._num_samples, generator=self._generator)
            self._used = 0
        self._used += self._batch_size
        return self.latest

    @property
    def latest(self) -> Tensor:
        return self._order[self._used - self._batch_size : self._used]

    def take(self, count: int) -> Tensor:
        """The next `count` minibatches, `[count, B]`."""
        size = self._batch_size
        if self._used + count * size > len(self._order):
            return torch.stack([next(self) for _ in range(count)])
        self._used += count * size
        return self._order[self._used - count * size : self._used].view(count, size)

    def state_dict(self) -> dict[str, Tensor]:
        """The pass under way and how far it has come; the generator is saved with its streams."""
        return {"order": self._order, "used": torch.tensor(self._used)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._order, self._used = state["order"].clone(), int(state["used"])


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Inside, torch's random state on the CPU is a fresh one drawn from `generator`; outside it is untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        yield
