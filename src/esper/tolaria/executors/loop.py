"""The reference executor: every host is an ordinary module, trained one after the other."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, AdamW, Optimizer

from esper.kasmina import (
    NOT_MEASURED,
    GraftedModel,
    Host,
    SlotTable,
    Snapshot,
    graft,
    restore_snapshot,
    take_snapshot,
)
from esper.kasmina.optimizer_groups import SLOT_KEY
from esper.leyline import Stage
from esper.tolaria.executors.base import (
    CLIP_EPS,
    EpochResult,
    Measurement,
    learning_rate,
    losses_and_accuracies,
    score_of,
)
from esper.tolaria.streams import BatchStream, Streams, drawing_from
from esper.tolaria.tasks import OptimizerSettings, Split, Task


def build_optimizer(host: Host, settings: OptimizerSettings) -> Optimizer:
    """The optimiser that a task asks for."""
    if settings.name == "sgd":
        return SGD(host.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay)
    return AdamW(host.parameters(), settings.lr, weight_decay=settings.weight_decay, fused=True)


class HostTrainer:
    """One grafted host with its optimiser and its random streams, trained an epoch at a time."""

    def __init__(self, task: Task, seed: int, episode_length: int, dtype: torch.dtype) -> None:
        self._task = task
        self._total_steps = episode_length * task.batches_per_epoch
        self._train = task.splits().train
        self.streams = Streams.from_seed(seed)
        self._batches = BatchStream(len(self._train), task.batch_size, self.streams.shuffle)
        self._step = 0
        with drawing_from(self.streams.init):
            host = task.build_host().to(dtype)
        self._optimizer = build_optimizer(host, task.optimizer)
        self.model = graft(
            host,
            at=host.slot_sites,
            example=_cast(task.splits().val.x[:2], dtype),
            optimizer=self._optimizer,
            isolation="shadow",
            generator=self.streams.seeds,
        )
        self._dtype = dtype

    def train_epoch(self) -> Tensor:
        """One epoch; returns the means of loss, accuracy, and gradient norms of the host and of its seeds."""
        self.model.train()
        training = [site.path for site in self.model.sites if self.model.slot(site.path).stage is Stage.TRAINING]
        parts = [list(part.parameters()) for part in (self.model.host, *self.model.slots)]
        batches = range(self._task.batches_per_epoch)
        return torch.stack([self._train_batch(training, parts) for _ in batches]).mean(0)

    def _train_batch(self, training: list[str], parts: list[list[Parameter]]) -> Tensor:
        rows = next(self._batches)
        x, y = _cast(self._train.x[rows], self._dtype), self._train.y[rows]
        rate = learning_rate(self._task.optimizer, self._step, self._task.batches_per_epoch, self._total_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate * (self._task.optimizer.seed_lr_scale if SLOT_KEY in group else 1.0)
        self._step += 1

        self._optimizer.zero_grad(set_to_none=True)
        logits: Tensor = self.model(x).flatten(0, -2)
        loss = F.cross_entropy(logits, y.flatten())
        loss.backward()
        for path in training:
            shadow: Tensor = self.model.shadow(path, x)
            F.cross_entropy(shadow.flatten(0, -2), y.flatten()).backward()
        norms = [_clip(part, self._task.optimizer.clip_norm) for part in parts]
        self._optimizer.step()
        accuracy = (logits.detach().argmax(-1) == y.flatten()).to(loss.dtype).mean()
        return torch.stack([loss.detach(), accuracy, *norms])

    def state_dict(self) -> dict[str, Any]:
        """Where this host stands, but for what its snapshot holds."""
        return {"step": self._step, "streams": self.streams.state_dict(), "batches": self._batches.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a host stood."""
        self._step = state["step"]
        self.streams.load_state_dict(state["streams"])
        self._batches.load_state_dict(state["batches"])


@torch.no_grad()
def _clip(parameters: list[Parameter], max_norm: float) -> Tensor:
    """What `clip_grad_norm_` does, for parameters on one device; sorting them by device took a tenth of a step."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros(())
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    scale = max_norm / (norm + CLIP_EPS)
    if bool(scale < 1):
        torch._foreach_mul_(gradients, scale)
    return norm


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if x.is_floating_point() else x


@torch.inference_mode()
def measure(model: GraftedModel, task: Task, split: Split, *, what_if: bool = False) -> Measurement:
    """Validate one network, and measure the contribution of every blended seed, in one forward pass.

    The samples are repeated once per blended seed, and each copy runs with that seed's alpha at 0. With
    `what_if` they are repeated for seeds at alpha 0 too, at alpha 1. The fields have one row.
    """
    table = model.table
    blended = (table.occupied & (table.alpha > 0))[0].nonzero().flatten().tolist()
    isolated = (table.occupied & (table.alpha == 0))[0].nonzero().flatten().tolist() if what_if else []
    copies = 1 + len(blended) + len(isolated)
    alphas = table.alpha[0].repeat(copies, 1)
    for copy, slot in enumerate([*blended, *isolated], start=1):
        alphas[copy, slot] = 0.0 if slot in blended else 1.0
    model.eval()  # training puts it back
    x = _cast(split.x, next(model.parameters()).dtype)
    per_sample = {slot: alphas[:, slot].repeat_interleave(len(split)) for slot in [*blended, *isolated]}
    with model.override_alphas(per_sample):
        logits: Tensor = model(x.repeat(copies, *[1] * (x.ndim - 1)))
    labels = split.y.expand(copies, *split.y.shape)
    loss, accuracy = losses_and_accuracies(logits.unflatten(0, (copies, len(split))), labels)
    score = score_of(task, loss, accuracy).to(torch.float32)
    contributions, prospects = torch.full((2, 1, len(model.sites)), NOT_MEASURED)
    contributions[0, blended] = score[0] - score[1 : 1 + len(blended)]
    prospects[0, isolated] = score[1 + len(blended) :] - score[0]
    return Measurement(loss[:1].to(torch.float32), score[:1], contributions, prospects)


class LoopExecutor:
    """Trains hosts one by one; the definition of correct."""

    def __init__(self, task: Task, num_hosts: int, episode_length: int, dtype: torch.dtype = torch.float32) -> None:
        self._task = task
        self._length = episode_length
        self._dtype = dtype
        # Seeds are no part of this first set of hosts: `start` replaces them all.
        self.hosts = [HostTrainer(task, 0, episode_length, dtype)] * num_hosts
        model = self.hosts[0].model
        self.sites, self.catalogue = model.sites, model.catalogue
        self.host_params = sum(parameter.numel() for parameter in model.host.parameters())
        self._snapshots: list[Snapshot | None] = [None] * num_hosts

    def start(self, hosts: Sequence[int], seeds: Sequence[int]) -> None:
        """Put fresh hosts without seeds in these places."""
        for index, seed in zip(hosts, seeds, strict=True):
            self.hosts[index] = HostTrainer(self._task, seed, self._length, self._dtype)
            self._snapshots[index] = None

    def follow(self, table: SlotTable) -> None:
        """Plant, remove and blend what the table says."""
        for index, host in enumerate(self.hosts):
            host.model.follow(table.select(slice(index, index + 1)))

    def train_epoch(self) -> EpochResult:
        """Train the hosts one after the other."""
        means = torch.stack([host.train_epoch() for host in self.hosts]).to(torch.float32)
        loss, accuracy, host_norm = means[:, :3].unbind(1)
        return EpochResult(loss, score_of(self._task, loss, accuracy), host_norm, means[:, 3:])

    def measure(self, split: Split, *, what_if: bool = False) -> Measurement:
        """Measure the hosts one after the other."""
        each = [measure(host.model, self._task, split, what_if=what_if) for host in self.hosts]
        return Measurement(
            torch.cat([one.loss for one in each]),
            torch.cat([one.score for one in each]),
            torch.cat([one.contributions for one in each]),
            torch.cat([one.prospects for one in each]),
        )

    def remember(self, hosts: Tensor) -> None:
        """Take a snapshot of each; the one before is released first, so that two never exist at once."""
        for index in hosts.nonzero().flatten().tolist():
            self._snapshots[index] = None
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
            self._snapshots[index] = take_snapshot(self.hosts[index].model)

    def restore(self, hosts: Tensor, table: SlotTable) -> None:
        """Return each to its snapshot."""
        for index in hosts.nonzero().flatten().tolist():
            snapshot = self._snapshots[index]
            assert snapshot is not None
            restore_snapshot(self.hosts[index].model, snapshot)
        self.follow(table)

    def network(self, host: int) -> GraftedModel:
        """The network that is being trained."""
        return self.hosts[host].model

    def state_dict(self) -> dict[str, Any]:
        """The last good states, which at the end of a step are the present ones, and the random streams."""
        snapshots = [snapshot.state_dict() if snapshot else None for snapshot in self._snapshots]
        return {"snapshots": snapshots, "hosts": [host.state_dict() for host in self.hosts]}

    def load_state_dict(self, state: Mapping[str, Any], table: SlotTable) -> None:
        """Go on from a saved state."""
        self.start(range(len(self.hosts)), [0] * len(self.hosts))
        for index, (saved, host) in enumerate(zip(state["snapshots"], self.hosts, strict=True)):
            snapshot = Snapshot.from_state_dict(saved)
            restore_snapshot(host.model, snapshot)
            host.load_state_dict(state["hosts"][index])
            self._snapshots[index] = snapshot
        self.follow(table)
