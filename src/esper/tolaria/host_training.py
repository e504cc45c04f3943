"""Training one host for one epoch, its seeds included, and measuring what each seed contributes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from esper.kasmina import NOT_MEASURED, GraftedModel, Host
from esper.kasmina.optimizer_groups import SLOT_KEY
from esper.leyline import Stage
from esper.tolaria.tasks import OptimizerSettings, Split, Task

_WARM_UP_EPOCHS = 2


def build_optimizer(host: Host, settings: OptimizerSettings) -> Optimizer:
    """The optimiser that a task asks for."""
    if settings.name == "sgd":
        return SGD(host.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay)
    return AdamW(host.parameters(), settings.lr, weight_decay=settings.weight_decay)


def learning_rate(settings: OptimizerSettings, step: int, steps_per_epoch: int, total_steps: int) -> float:
    """The learning rate of minibatch `step`, counted from 0, in an episode of `total_steps`."""
    if settings.schedule == "constant":
        return settings.lr
    warm_up = min(1.0, (step + 1) / (_WARM_UP_EPOCHS * steps_per_epoch))
    return settings.lr * warm_up * 0.5 * (1 + math.cos(math.pi * step / total_steps))


@dataclass(frozen=True, slots=True)
class EpochResult:
    """What training for one epoch showed; means over its minibatches."""

    loss: float
    accuracy: float
    host_grad_norm: float
    seed_grad_norms: Tensor
    """`[S]`: 0 where a slot is empty."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What validation showed."""

    loss: float
    score: float
    """Share of right answers."""
    contributions: Tensor
    """`[S]`: the score minus the score without that seed; NaN where no seed is blended."""
    prospects: Tensor
    """`[S]`: the score with that isolated seed at alpha 1 minus the score; NaN unless asked for."""


class BatchStream:
    """Minibatches of a host's own shuffled passes over the training split, endless across epochs."""

    def __init__(self, num_samples: int, batch_size: int, generator: torch.Generator) -> None:
        self._num_samples = num_samples
        self._batch_size = batch_size
        self._generator = generator
        self._pass: Iterator[Tensor] = iter(())

    def __next__(self) -> Tensor:
        """Indices of the next minibatch; what is left of a pass and too small is skipped."""
        rows = next(self._pass, None)
        if rows is None or len(rows) < self._batch_size:
            order = torch.randperm(self._num_samples, generator=self._generator)
            self._pass = iter(order.split(self._batch_size))
            rows = next(self._pass)
        return rows


class HostTrainer:
    """Trains one grafted host on one task, an epoch at a time."""

    def __init__(
        self, model: GraftedModel, optimizer: Optimizer, task: Task, episode_length: int, shuffle: torch.Generator
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._task = task
        self._total_steps = episode_length * task.batches_per_epoch
        self._train = task.splits().train
        self._batches = BatchStream(len(self._train), task.batch_size, shuffle)
        self._step = 0

    def train_epoch(self) -> EpochResult:
        """One epoch: a fixed number of minibatches, whatever the controller does."""
        self._model.train()
        training = [site.path for site in self._model.sites if self._model.slot(site.path).stage is Stage.TRAINING]
        rows = [self._train_batch(training) for _ in range(self._task.batches_per_epoch)]
        loss, accuracy, host_norm, *seed_norms = torch.stack(rows).mean(0).tolist()
        return EpochResult(loss, accuracy, host_norm, torch.tensor(seed_norms))

    def _train_batch(self, training: list[str]) -> Tensor:
        """One optimiser step; returns loss, accuracy, gradient norm of the host and of each slot's seed."""
        rows = next(self._batches)
        x, y = self._train.x[rows], self._train.y[rows]
        rate = learning_rate(self._task.optimizer, self._step, self._task.batches_per_epoch, self._total_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate * (self._task.optimizer.seed_lr_scale if SLOT_KEY in group else 1.0)
        self._step += 1

        self._optimizer.zero_grad(set_to_none=True)
        logits: Tensor = self._model(x)
        loss = F.cross_entropy(logits, y)
        loss.backward()
        for path in training:
            F.cross_entropy(self._model.shadow(path, x), y).backward()
        norms = self._model.clip_gradients(self._task.optimizer.clip_norm)
        self._optimizer.step()
        accuracy = (logits.detach().argmax(1) == y).float().mean()
        return torch.cat([torch.stack([loss.detach(), accuracy]), norms])


@torch.inference_mode()
def measure(model: GraftedModel, split: Split, *, what_if: bool = False) -> Measurement:
    """Validate, and measure the contribution of every blended seed, in one forward pass.

    The samples are repeated once per blended seed, and each copy runs with that seed's alpha at 0. With
    `what_if` they are repeated for seeds at alpha 0 too, at alpha 1.
    """
    table = model.table
    blended = (table.occupied & (table.alpha > 0))[0].nonzero().flatten().tolist()
    isolated = (table.occupied & (table.alpha == 0))[0].nonzero().flatten().tolist() if what_if else []
    alphas = table.alpha[0].repeat(1 + len(blended) + len(isolated), 1)
    for copy, slot in enumerate([*blended, *isolated], start=1):
        alphas[copy, slot] = 0.0 if slot in blended else 1.0
    right, loss = _score_copies(model, split, alphas, [*blended, *isolated])
    contributions, prospects = torch.full((2, len(model.sites)), NOT_MEASURED)
    contributions[blended] = right[0] - right[1 : 1 + len(blended)]
    prospects[isolated] = right[1 + len(blended) :] - right[0]
    return Measurement(loss, right[0].item(), contributions, prospects)


def _score_copies(model: GraftedModel, split: Split, alphas: Tensor, slots: list[int]) -> tuple[Tensor, float]:
    """The score of each copy of the samples under its row of `alphas [copies, S]`, and the loss of the first."""
    copies = len(alphas)
    model.eval()  # training puts it back
    with model.override_alphas({slot: alphas[:, slot].repeat_interleave(len(split)) for slot in slots}):
        logits = model(split.x.repeat(copies, *[1] * (split.x.ndim - 1)))
    right = (logits.argmax(1) == split.y.repeat(copies)).view(copies, -1).float().mean(1)
    return right, F.cross_entropy(logits[: len(split)], split.y).item()
