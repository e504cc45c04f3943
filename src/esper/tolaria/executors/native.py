"""Hosts one at a time, each a short program of few operations that runs compiled, with its whole minibatch in cache.

What limits stacked hosts is memory: activations of all hosts leave the cache, every operation is a pass over them and
autograd makes another. Here the speed hardly depends on how many hosts there are, hosts may have different seeds
without groups or padding, and a host computes the same, bit for bit, whatever runs beside it.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from torch import Tensor

from esper.kasmina import NOT_MEASURED, GraftedModel, SlotTable, find_blueprint, graft
from esper.kasmina.merit import MERIT_SAMPLES, relative
from esper.kasmina.seed_state import remove_slots
from esper.leyline import InputError
from esper.tasks import Split, Task
from esper.tolaria.executors import native_kernels
from esper.tolaria.executors.base import (
    BatchStream,
    EpochResult,
    Measurement,
    Streams,
    drawing_from,
    flatten,
    learning_rate,
    network_of,
    score_of,
)
from esper.tolaria.executors.native_hosts import HostPrograms, Planted, Variant
from esper.tolaria.executors.native_kernels import Field
from esper.tolaria.executors.native_program import Program

Numbers = NDArray[Any]

_CHUNK = 64
"""Samples that are validated together."""
_QUIET_SECONDS = 2.0
"""What takes longer than this is announced."""
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Host:
    """The parameters of one host and of its seeds in one piece, seeds in the order of their slots."""

    planted: Planted
    weights: Numbers
    first: Numbers
    """Running mean of the gradient, or momentum."""
    second: Numbers
    """Running mean of its square."""
    steps: Numbers
    """`[1 + seeds]`: optimiser steps taken."""

    @classmethod
    def fresh(cls, weights: Numbers, slots: int) -> Self:
        """A host without seeds that no optimiser has seen."""
        return cls((0,) * slots, weights, np.zeros_like(weights), np.zeros_like(weights), np.zeros(1))

    def arrays(self) -> dict[str, Numbers]:
        return {spec.name: getattr(self, spec.name) for spec in fields(self) if spec.name != "planted"}

    def copy(self) -> Self:
        return type(self)(self.planted, **{name: array.copy() for name, array in self.arrays().items()})

    def part(self, number: int, units: Sequence[int]) -> Self:
        """The host alone, number 0, or one of its seeds; `units` are where their parameters begin."""
        here = slice(units[number], units[number + 1])
        return type(self)((), self.weights[here], self.first[here], self.second[here], self.steps[number : number + 1])

    @property
    def occupied(self) -> list[int]:
        """The slots that have a seed."""
        return [slot for slot, blueprint in enumerate(self.planted) if blueprint]


@cache
def compile_kernels(dtype: torch.dtype) -> None:
    """Compile the kernels for this number format, or load them from numba's cache; once for a process."""
    timer = threading.Timer(_QUIET_SECONDS, _LOG.warning, ["compiling the executor 'native', once on this machine ..."])
    timer.start()
    try:
        none, no_rows = torch.empty(0, dtype=dtype).numpy(), np.zeros((0, len(Field)), np.int64)
        rows, data = np.zeros(0, np.int64), torch.empty(0, 1, dtype=dtype).numpy()
        native_kernels.train_epoch(
            no_rows, data, rows, rows.reshape(0, 1), none, none, none, np.zeros(0), rows, np.zeros(0), 1.0, none, none,
            none, none, none, none, 1.0, 0.0, 0.0, True, np.zeros((0, 2)),
        )  # fmt: skip
        native_kernels.validate(no_rows, data, rows, 1, none, none, none, none, none, none, np.zeros(1), rows)
        native_kernels.probe(no_rows, 0, data, rows, rows, none, none, none, none, none, none, none)
    finally:
        timer.cancel()


class NativeExecutor:
    """Trains hosts one by one, compiled; agrees with `loop` to float tolerance. `Executor` says what the methods do.

    For hosts over series and features, and every blueprint that is made of operations it knows; others are refused.
    """

    def __init__(self, task: Task, num_hosts: int, episode_length: int, dtype: torch.dtype = torch.float32) -> None:
        self._task, self._num_hosts, self._length, self._dtype = task, num_hosts, episode_length, dtype
        compile_kernels(dtype)
        splits = task.splits()
        if not splits.train.x.is_floating_point() or splits.train.y.ndim > 1:
            raise InputError("the executor 'native' trains hosts over series and features; use 'stacked' or 'loop'")
        # What all hosts have in common, from a host whose weights are never used.
        with torch.random.fork_rng(devices=[]):
            host = task.build_host().to(dtype)
        template = graft(host, at=host.slot_sites, example=splits.val.x[:2].to(dtype))
        self.sites, self.catalogue = template.sites, template.catalogue
        remove_slots(host)
        sample = tuple(splits.train.x.shape[1:])
        self._programs = HostPrograms(host, self.sites, self.catalogue, sample, dtype)
        self.host_params = self._programs.host_params
        self._data = self._arrays(splits.train)
        self._memory: list[Numbers] = [np.zeros(0)] * 4
        self._blas = ThreadpoolController().select(user_api="blas")
        # What is each host's own; `start` gives these places their first hosts.
        self._streams = [Streams.from_seed(0) for _ in range(num_hosts)]
        self._batches = [self._batch_stream(streams) for streams in self._streams]
        self._steps = [0] * num_hosts
        empty = torch.zeros(self.host_params, dtype=dtype).numpy()
        self._now = [_Host.fresh(empty, len(self.sites)) for _ in range(num_hosts)]
        self._good = list(self._now)
        self._take(SlotTable.empty(num_hosts, len(self.sites)))

    def _take(self, table: SlotTable) -> None:
        """Keep a table, and what every host needs of it in each pass."""
        self._table = table
        self._alpha = table.alpha.tolist()
        self._blended = [tuple(row) for row in table.blended.tolist()]
        self._isolated = [[slot for slot, apart in enumerate(row) if apart] for row in table.isolated.tolist()]

    def _arrays(self, split: Split) -> tuple[Numbers, Numbers]:
        """Samples as rows, and labels, for the kernels."""
        return split.x.to(self._dtype).flatten(1).contiguous().numpy(), split.y.contiguous().numpy()

    def start(self, hosts: Sequence[int], seeds: Sequence[int]) -> None:
        for index, seed in zip(hosts, seeds, strict=True):
            streams = self._streams[index] = Streams.from_seed(seed)
            self._batches[index] = self._batch_stream(streams)
            with drawing_from(streams.init):
                host = self._task.build_host().to(self._dtype)
            weights = torch.cat([flatten(host.get_submodule(part)).to(self._dtype) for part in host.parts])
            self._now[index] = _Host.fresh(weights.numpy(), len(self.sites))
            self._steps[index] = 0
        fresh = torch.zeros(self._num_hosts, dtype=torch.bool)
        fresh[list(hosts)] = True
        self._take(SlotTable.empty(*self._table.shape).where(fresh, self._table))

    def follow(self, table: SlotTable) -> None:
        """Remove and plant seeds until what is planted is what the table says."""
        silent = table.blended.tolist()
        for index, wanted in enumerate(table.blueprint.tolist()):
            if tuple(wanted) != self._now[index].planted:
                self._now[index] = self._replant(index, tuple(wanted), silent[index])
        self._take(table)

    def _replant(self, index: int, wanted: Planted, silent: list[bool]) -> _Host:
        """The host with other seeds; what stays keeps its parameters and what the optimiser knows of them."""
        old = self._now[index]
        units = self._programs.units(old.planted)
        parts = {slot: old.part(number, units) for number, slot in enumerate((-1, *old.occupied))}
        new = [parts[-1]]
        for slot, blueprint in enumerate(wanted):
            if blueprint and old.planted[slot] == blueprint:
                new.append(parts[slot])
            elif blueprint:
                new.append(_Host.fresh(self._germinate(index, slot, blueprint, silent[slot]), 0))
        columns = zip(*(part.arrays().values() for part in new), strict=True)
        return _Host(wanted, *(np.concatenate(column) for column in columns))

    def _germinate(self, index: int, slot: int, blueprint: int, silent: bool) -> Numbers:
        shape = self.sites[slot].shape
        with torch.inference_mode(False), drawing_from(self._streams[index].seeds):
            seed = find_blueprint(shape.family, blueprint).build(shape, silent).to(self._dtype)
        weights: Numbers = flatten(seed).to(self._dtype).numpy()
        return weights

    def train_epoch(self) -> EpochResult:
        count, how = self._task.batches_per_epoch, self._task.optimizer
        means = np.zeros((self._num_hosts, 3), np.float32)
        seed_norms = np.zeros((self._num_hosts, len(self.sites)), np.float32)
        rates = {start: self._rates(start) for start in set(self._steps)}
        with self._blas.limit(limits=1):
            for index, host in enumerate(self._now):
                # Seeds in isolation learn from variants of the host that have them as a whole.
                variants = tuple(map(Variant, self._isolated[index]))
                program = self._programs.passes(host.planted, self._blended[index], variants, train=True)
                batches = self._batches[index].take(count).numpy()
                results = np.zeros((count, 2 + len(host.steps)))
                native_kernels.train_epoch(
                    program.table, *self._data, batches,
                    host.weights, host.first, host.second, host.steps, np.array(self._programs.units(host.planted)),
                    rates[self._steps[index]], how.seed_lr_scale,
                    self._alphas(index, [1.0] * len(variants)), program.consts,
                    *self._room(program, batches.shape[1], len(host.weights)),
                    how.clip_norm, how.weight_decay, how.momentum, how.name == "adamw", results,
                )  # fmt: skip
                self._steps[index] += count
                mean = results.mean(0)
                means[index], seed_norms[index, host.occupied] = mean[:3], mean[3:]
        loss, accuracy, host_norm = torch.from_numpy(means).unbind(1)
        return EpochResult(loss, score_of(self._task, loss, accuracy), host_norm, torch.from_numpy(seed_norms))

    def _rates(self, start: int) -> Numbers:
        """The learning rates of the epoch that begins with step `start`."""
        count, how = self._task.batches_per_epoch, self._task.optimizer
        steps = range(start, start + count)
        return np.array([learning_rate(how, step, count, self._length * count) for step in steps])

    def measure(self, split: Split, *, what_if: bool = False, trials: Tensor | None = None) -> Measurement:
        """Validate all hosts, with and without each blended seed, sharing what lies before its slot."""
        result = torch.full((5, self._num_hosts, len(self.sites)), NOT_MEASURED)
        data = self._arrays(split)
        with self._blas.limit(limits=1):
            for index in range(self._num_hosts):
                blended = [slot for slot, is_in in enumerate(self._blended[index]) if is_in]
                whole = self._isolated[index] if what_if else []
                tried = {} if trials is None else {slot: a for slot, a in enumerate(trials[index].tolist()) if a == a}
                # The network as it is, and one variant for each seed whose alpha is another.
                variants = [*(Variant(slot, with_seed=False) for slot in blended), *map(Variant, (*whole, *tried))]
                alphas = [0.0] * len(blended) + [1.0] * len(whole) + list(tried.values())
                loss, score = self._validate(index, data, tuple(variants), alphas)
                own, without, with_all, with_more = score.split([1, len(blended), len(whole), len(tried)])
                result[0, index], result[1, index] = loss[0], own
                result[2, index, blended] = own - without
                result[3, index, whole] = with_all - own
                result[4, index, list(tried)] = with_more.nan_to_num(0.0) - own
        return Measurement(result[0, :, 0], result[1, :, 0], *result[2:])

    def _validate(
        self, index: int, data: tuple[Numbers, Numbers], variants: tuple[Variant, ...], alphas: list[float]
    ) -> tuple[Tensor, Tensor]:
        """Loss and score of a host and of its variants, `[1 + V]`."""
        host = self._now[index]
        program = self._programs.passes(host.planted, self._blended[index], variants, train=False)
        losses, rights = np.zeros(1 + len(variants)), np.zeros(1 + len(variants), np.int64)
        act, grad, _, spare = self._room(program, _CHUNK, 0)
        native_kernels.validate(
            program.table, *data, _CHUNK, host.weights, self._alphas(index, alphas), program.consts, act, grad, spare,
            losses, rights,
        )  # fmt: skip
        loss, accuracy = (torch.from_numpy(sums / len(data[1])).to(torch.float32) for sums in (losses, rights))
        return loss, score_of(self._task, loss, accuracy)

    def measure_merit(self, hosts: Tensor) -> Tensor:
        result = torch.full((self._num_hosts, *self.catalogue.fits.shape), NOT_MEASURED, dtype=self._dtype)
        with self._blas.limit(limits=1):
            for index in hosts.nonzero().flatten().tolist():
                result[index] = self._merit_of(index)
        return result

    def _merit_of(self, index: int) -> Tensor:
        """`[S, B]`, from gradients at slots and of the parameters of would-be seeds."""
        host, rows = self._now[index], self._batches[index].latest[:MERIT_SAMPLES].numpy()
        program = self._programs.merit(host.planted, self._blended[index])
        weights = np.concatenate([host.weights, self._programs.would_be_weights(self._streams[index].variant)])
        act, grad, slopes, spare = self._room(program.whole, len(rows), len(weights))
        native_kernels.probe(
            program.whole.table, program.cut, *self._data, rows, weights, self._alphas(index, []), program.whole.consts,
            act, grad, slopes, spare,
        )  # fmt: skip
        sums = torch.full(self.catalogue.fits.shape, NOT_MEASURED, dtype=self._dtype)
        for (slot, blueprint), parameters in program.learning.items():
            sums[slot, blueprint - 1] = float(sum(np.abs(slopes[part]).sum() for part in parameters))
        arriving = [np.linalg.norm(grad[first * len(rows) : end * len(rows)]) for first, end in program.behind]
        return relative(sums, torch.tensor(arriving, dtype=self._dtype))

    def remember(self, hosts: Tensor) -> None:
        for index in hosts.nonzero().flatten().tolist():
            self._good[index] = self._now[index].copy()

    def restore(self, hosts: Tensor, table: SlotTable) -> None:
        for index in hosts.nonzero().flatten().tolist():
            self._now[index] = self._good[index].copy()
        self._take(table)

    def network(self, host: int) -> GraftedModel:
        mine = self._now[host]
        units, weights = self._programs.units(mine.planted), torch.from_numpy(mine.weights)
        seeds = {slot: weights[units[n] : units[n + 1]] for n, slot in enumerate(mine.occupied, start=1)}
        row = self._table.select(slice(host, host + 1))
        return network_of(self._task, self._dtype, self.sites, row, weights[: self.host_params], seeds)

    def state_dict(self) -> dict[str, Any]:
        """All parameters and the random streams; at the end of a step the last good state is the present one."""
        copies = [host.copy() for host in self._now]
        return {
            "planted": [list(host.planted) for host in copies],
            "hosts": [{name: torch.from_numpy(array) for name, array in host.arrays().items()} for host in copies],
            "steps": list(self._steps),
            "streams": [streams.state_dict() for streams in self._streams],
            "batches": [stream.state_dict() for stream in self._batches],
        }

    def load_state_dict(self, state: Mapping[str, Any], table: SlotTable) -> None:
        for index, (planted, saved) in enumerate(zip(state["planted"], state["hosts"], strict=True)):
            self._now[index] = _Host(tuple(planted), **{name: tensor.numpy() for name, tensor in saved.items()}).copy()
            self._good[index] = self._now[index].copy()
            self._streams[index].load_state_dict(state["streams"][index])
            self._batches[index] = self._batch_stream(self._streams[index])
            self._batches[index].load_state_dict(state["batches"][index])
        self._steps = list(state["steps"])
        self._take(table)

    def _batch_stream(self, streams: Streams) -> BatchStream:
        return BatchStream(len(self._data[1]), self._task.batch_size, streams.shuffle)

    def _alphas(self, index: int, of_variants: Sequence[float]) -> Numbers:
        return np.array([*self._alpha[index], *of_variants], self._data[0].dtype)

    def _room(self, program: Program, size: int, parameters: int) -> tuple[Numbers, ...]:
        """Memory for a pass of `size` samples: values, gradients, gradients of parameters, and some to spare.

        The same for all hosts, so that it stays in the cache.
        """
        wanted = (program.rows * size, program.rows * size, parameters, program.spare * size + program.spare_fixed)
        for place, count in enumerate(wanted):
            if len(self._memory[place]) < count:
                self._memory[place] = torch.zeros(count, dtype=self._dtype).numpy()
        return tuple(memory[:count] for memory, count in zip(self._memory, wanted, strict=True))
