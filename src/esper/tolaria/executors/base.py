"""What every executor does: keep N hosts, train them for an epoch, measure them, remember and restore them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.kasmina import Catalogue, GraftedModel, Site, SlotTable
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
