"""The reference executor: every host is an ordinary module, trained one after the other.

First passes of one network, as written or compiled, then its validation, its training, and all hosts.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from torch.nn import Parameter
from torch.optim import SGD, AdamW, Optimizer

from esper.kasmina import (
    NOT_MEASURED,
    GraftedModel,
    Host,
    Site,
    SlotTable,
    Snapshot,
    graft,
    graft_again,
    restore_snapshot,
    take_snapshot,
)
from esper.kasmina.keeping import keeping_random_state
from esper.kasmina.merit import MERIT_SAMPLES, PassWatch, WouldBeSeeds, measure_merit
from esper.kasmina.optimizer_groups import SLOT_KEY
from esper.kasmina.seed_state import remove_slots
from esper.kasmina.torch_private import clip_gradients
from esper.tasks import OptimizerSettings, Split, Task
from esper.tolaria.compute import DEFAULT_COMPUTE, ComputeSettings
from esper.tolaria.executors.base import (
    BatchStream,
    EpochResult,
    Measurement,
    Streams,
    drawing_from,
    learning_rate,
    losses_and_accuracies,
    samples_at_once,
    score_of,
)
from esper.tolaria.precision import HostPrecision
from esper.tolaria.records import join

P = ParamSpec("P")
R = TypeVar("R")
_LOG = logging.getLogger(__name__)
_CPU = torch.device("cpu")
_CACHED_ELEMENTS = 2**20
"""Of one activation tensor: above this, samples are measured in several goes, to stay in the cache."""


def train_pass(model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of a minibatch, and its logits `[M, C]`."""
    logits = model(x).flatten(0, -2)
    return F.cross_entropy(logits, y.flatten()), logits


def eval_pass(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return model(x)


class Passes:
    """Runs passes as they are written."""

    def __call__(self, run: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return run(*args, **kwargs)


class CompiledPasses(Passes):
    """Runs passes compiled; what is compiled is compiled at the first call.

    The network is an argument, so what is compiled serves every host that has the same seeds in the same slots, for
    any batch size; another structure is compiled when it first appears. Where compiling fails, that is said once, and
    from then on all passes run as they are written.
    """

    def __init__(self) -> None:
        self._works = True
        self._compiled: dict[object, Callable[..., object]] = {}

    def __call__(self, run: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if self._works:
            try:
                if run not in self._compiled:
                    # In here, because on some platforms even asking fails.
                    self._compiled[run] = torch.compile(run, dynamic=True)
                return self._compiled[run](*args, **kwargs)  # type: ignore[return-value]
            except Exception as error:  # whatever a backend may raise; a fault of the network itself is raised below
                self._works = False
                _LOG.warning("hosts run uncompiled, because compiling failed: %s: %s", type(error).__name__, error)
        return run(*args, **kwargs)


EAGER = Passes()
COMPILED = CompiledPasses()
"""One for the whole process: compiled code is kept, and a failure told, once."""


def move_split(split: Split, device: torch.device, dtype: torch.dtype) -> Split:
    """The split on a device, its values (but not its tokens) as `dtype`; the same tensors where nothing changes."""
    x = split.x.to(device, dtype) if split.x.is_floating_point() else split.x.to(device)
    return Split(x, split.y.to(device))


@torch.inference_mode()
def evaluate_variants(
    model: GraftedModel, task: Task, split: Split, alphas: Tensor, passes: Passes = EAGER
) -> tuple[Tensor, Tensor]:
    """Loss and score `[C]` of C variants of one network in one pass, with their seeds forced to `alphas [C, S]`."""
    model.eval()  # training puts it back
    copies = len(alphas)
    parts = []
    for x in split.x.split(samples_at_once(model.sites, copies, _CACHED_ELEMENTS)):
        # The samples once per variant, and for each of these rows the alpha that its variant has.
        forced: dict[int, Tensor | float] = {}
        for slot in model.table.occupied[0].nonzero().flatten().tolist():
            per_sample = alphas[:, slot].repeat_interleave(len(x))
            forced[slot] = per_sample.to(x.device) if bool(per_sample.any()) else 0.0
        with model.override_alphas(forced):
            logits = passes(eval_pass, model, x.repeat(copies, *[1] * (x.ndim - 1)))
        parts.append(logits.unflatten(0, (copies, len(x))))
    loss, accuracy = losses_and_accuracies(torch.cat(parts, 1), split.y.expand(copies, *split.y.shape))
    return loss.to(torch.float32), score_of(task, loss, accuracy).to(torch.float32)


@torch.inference_mode()
def measure(
    model: GraftedModel,
    task: Task,
    split: Split,
    *,
    what_if: bool = False,
    trials: Tensor | None = None,
    passes: Passes = EAGER,
) -> Measurement:
    """Validate one network, and measure the contribution of every blended seed, in one forward pass.

    The samples are repeated once per blended seed, and each copy runs with that seed's alpha at 0. With
    `what_if` they are repeated for seeds at alpha 0 too, at alpha 1, and once for each alpha in `trials [S]` that is
    not NaN. The fields have one row.
    """
    table = model.table
    blended = table.blended[0].nonzero().flatten().tolist()
    isolated = table.isolated[0].nonzero().flatten().tolist() if what_if else []
    tried = {} if trials is None else {slot: a for slot, a in enumerate(trials.tolist()) if a == a}

    # The network as it is, then one variant for each seed whose alpha is forced.
    forced = [*((slot, 0.0) for slot in blended), *((slot, 1.0) for slot in isolated), *tried.items()]
    alphas = table.alpha[0].repeat(1 + len(forced), 1)
    for copy, (slot, alpha) in enumerate(forced, start=1):
        alphas[copy, slot] = alpha
    parameter = next(model.parameters())
    loss, score = evaluate_variants(model, task, move_split(split, parameter.device, parameter.dtype), alphas, passes)

    # What each variant tells, at the slot that it is about.
    own, without, with_all, with_more = score.split([1, len(blended), len(isolated), len(tried)])
    contributions, prospects, gains = torch.full((3, 1, len(model.sites)), NOT_MEASURED, device=score.device)
    contributions[0, blended] = own - without
    prospects[0, isolated] = with_all - own
    gains[0, list(tried)] = with_more.nan_to_num(0.0) - own
    return Measurement(loss[:1], own, contributions, prospects, gains)


@dataclass(frozen=True, slots=True)
class HostSetup:
    """What all hosts of an executor have in common."""

    task: Task
    episode_length: int
    dtype: torch.dtype
    device: torch.device
    precision: str
    passes: Passes
    train: Split
    """The training split, on the device."""
    would_be: WouldBeSeeds


class HostTrainer:
    """One grafted host with its optimiser and its random streams, trained an epoch at a time."""

    def __init__(self, setup: HostSetup, seed: int, sites: tuple[Site, ...] = ()) -> None:
        self._setup = setup
        self._task = task = setup.task
        self._total_steps = setup.episode_length * task.batches_per_epoch
        self.streams = Streams.from_seed(seed)
        self._batches = BatchStream(len(setup.train), task.batch_size, self.streams.shuffle)
        self._step = 0
        self._precision = HostPrecision(setup.precision, setup.device)
        with drawing_from(self.streams.init):
            host = task.build_host().to(setup.dtype)
        self._optimizer = _build_optimizer(host, task.optimizer)
        # Made and probed on the CPU and then moved, so that a seed gives the same weights on every device.
        if not sites:
            example = move_split(task.splits().val, _CPU, setup.dtype).x[:2]
            sites = graft(host, at=host.slot_sites, example=example).sites
            remove_slots(host)
        model = graft_again(host, sites, optimizer=self._optimizer, isolation="shadow", generator=self.streams.seeds)
        self.model = model.to(setup.device)
        self._good: Snapshot | None = None
        self._good_precision: dict[str, Any] = {}

    def train_epoch(self) -> Tensor:
        """One epoch; returns the means of loss, accuracy, and gradient norms of the host and of its seeds."""
        self.model.train()
        isolated = self.model.table.isolated[0].tolist()
        training = [site.path for site, apart in zip(self.model.sites, isolated, strict=True) if apart]
        parts = [list(part.parameters()) for part in (self.model.host, *self.model.slots)]
        results = torch.stack([self._train_batch(training, parts) for _ in range(self._task.batches_per_epoch)])
        loss, accuracy = results[:, :2].unbind(1)
        accuracy.masked_fill_(~loss.isfinite(), 0.0)  # the argmax of NaN is no answer
        if not self._precision.skips_steps:
            return results.mean(0)
        norms = results[:, 2:]
        # Gradients that overflowed were not used, so their norms tell nothing, unless there are no others.
        return torch.cat([results[:, :2].mean(0), norms.where(norms.isfinite(), torch.nan).nanmean(0)])

    def _train_batch(self, training: list[str], parts: list[list[Parameter]]) -> Tensor:
        setup, precision, optimizer = self._setup, self._precision, self._optimizer
        rows = next(self._batches)
        x, y = setup.train.x[rows], setup.train.y[rows]
        # Seeds have parameter groups of their own, and with them learning rates.
        rate = learning_rate(self._task.optimizer, self._step, self._task.batches_per_epoch, self._total_steps)
        for group in optimizer.param_groups:
            group["lr"] = rate * (self._task.optimizer.seed_lr_scale if SLOT_KEY in group else 1.0)
        self._step += 1

        # The host and its blended seeds learn from one loss, each isolated seed from that of its shadow pass.
        optimizer.zero_grad(set_to_none=True)
        with precision.autocast():
            loss, logits = setup.passes(train_pass, self.model, x, y)
        precision.backward(loss)
        for path in training:
            with precision.autocast():
                shadow_loss, _ = train_pass(partial(self.model.shadow, path), x, y)
            precision.backward(shadow_loss)

        # Clipped apart, so that no seed shrinks the gradients of its host.
        precision.unscale(optimizer)
        norms = clip_gradients(parts, self._task.optimizer.clip_norm)
        precision.step(optimizer)
        accuracy = (logits.detach().argmax(-1) == y.flatten()).to(loss.dtype).mean()
        return torch.stack([loss.detach(), accuracy, *norms])

    def measure_merit(self) -> Tensor:
        """`[S, B]`: merit on samples of the last minibatch, in the precision of the weights; nothing else changes."""
        rows = self._batches.latest[:MERIT_SAMPLES]
        x, y = self._setup.train.x[rows], self._setup.train.y[rows]
        self.model.train()
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        with keeping_random_state(self.model), PassWatch(self.model) as seen:
            loss, _ = train_pass(lambda samples: functional_call(self.model, buffers, samples), x, y)
            # Its results do not matter; `.grad` stays as it is.
            torch.autograd.grad(loss, list(self.model.parameters()), allow_unused=True)
        return measure_merit(self.model, seen, self._setup.would_be, self.streams.variant)

    def remember(self) -> None:
        """Take a snapshot; the one before is released first, so that two never exist at once."""
        self._good = None
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        self._good = take_snapshot(self.model)
        self._good_precision = self._precision.state_dict()

    def restore(self) -> None:
        assert self._good is not None
        restore_snapshot(self.model, self._good)
        self._precision.load_state_dict(self._good_precision)

    def state_dict(self) -> dict[str, Any]:
        """The last good state, which at the end of a step is the present one, and where the random streams stand."""
        return {
            "snapshot": None if self._good is None else self._good.state_dict(),
            "precision": self._good_precision,
            "step": self._step,
            "streams": self.streams.state_dict(),
            "batches": self._batches.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._good = Snapshot.from_state_dict(state["snapshot"], len(self.model.sites))
        self._good_precision = state["precision"]
        self.restore()
        self._step = state["step"]
        self.streams.load_state_dict(state["streams"])
        self._batches.load_state_dict(state["batches"])


class LoopExecutor:
    """Trains hosts one by one on one device; the definition of correct. What it returns is on that device.

    `Executor` says what the methods do, and `network` returns the one that is being trained.
    """

    def __init__(
        self,
        task: Task,
        num_hosts: int,
        episode_length: int,
        dtype: torch.dtype = torch.float32,
        compute: ComputeSettings = DEFAULT_COMPUTE,
        device: torch.device = _CPU,
    ) -> None:
        passes = COMPILED if compute.compile_hosts else EAGER
        train = move_split(task.splits().train, device, dtype)
        self._setup = HostSetup(task, episode_length, dtype, device, compute.precision, passes, train, WouldBeSeeds())
        # Seeds are no part of this first set of hosts: `start` replaces them all.
        self.hosts = [HostTrainer(self._setup, 0)] * num_hosts
        model = self.hosts[0].model
        self.sites, self.catalogue = model.sites, model.catalogue
        self.host_params = sum(parameter.numel() for parameter in model.host.parameters())

    def start(self, hosts: Sequence[int], seeds: Sequence[int]) -> None:
        for index, seed in zip(hosts, seeds, strict=True):
            self.hosts[index] = HostTrainer(self._setup, seed, self.sites)

    def follow(self, table: SlotTable) -> None:
        for index, host in enumerate(self.hosts):
            host.model.follow(table.select(slice(index, index + 1)))

    def train_epoch(self) -> EpochResult:
        means = torch.stack([host.train_epoch() for host in self.hosts]).to(torch.float32)
        loss, accuracy, host_norm = means[:, :3].unbind(1)
        return EpochResult(loss, score_of(self._setup.task, loss, accuracy), host_norm, means[:, 3:])

    def measure(self, split: Split, *, what_if: bool = False, trials: Tensor | None = None) -> Measurement:
        setup = self._setup
        placed = move_split(split, setup.device, setup.dtype)
        tried = [None] * len(self.hosts) if trials is None else trials.unbind()
        measured = [
            measure(host.model, setup.task, placed, what_if=what_if, trials=own, passes=setup.passes)
            for host, own in zip(self.hosts, tried, strict=True)
        ]
        return join(measured)

    def measure_merit(self, hosts: Tensor) -> Tensor:
        setup, shape = self._setup, (len(self.hosts), *self.catalogue.fits.shape)
        result = torch.full(shape, NOT_MEASURED, dtype=setup.dtype, device=setup.device)
        for index in hosts.nonzero().flatten().tolist():
            result[index] = self.hosts[index].measure_merit()
        return result

    def remember(self, hosts: Tensor) -> None:
        for index in hosts.nonzero().flatten().tolist():
            self.hosts[index].remember()

    def restore(self, hosts: Tensor, table: SlotTable) -> None:
        for index in hosts.nonzero().flatten().tolist():
            self.hosts[index].restore()
        self.follow(table)

    def network(self, host: int) -> GraftedModel:
        return self.hosts[host].model

    def state_dict(self) -> dict[str, Any]:
        return {"hosts": [host.state_dict() for host in self.hosts]}

    def load_state_dict(self, state: Mapping[str, Any], table: SlotTable) -> None:
        self.start(range(len(self.hosts)), [0] * len(self.hosts))
        for host, saved in zip(self.hosts, state["hosts"], strict=True):
            host.load_state_dict(saved)
        self.follow(table)


def _build_optimizer(host: Host, settings: OptimizerSettings) -> Optimizer:
    if settings.name == "sgd":
        return SGD(host.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay)
    return AdamW(host.parameters(), settings.lr, weight_decay=settings.weight_decay, fused=True)
