"""Which executor runs, by name or as the fastest one, and hosts shared out over several devices."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, ParamSpec, TypeVar, get_args

import torch
from torch import Tensor

from esper.kasmina import GraftedModel, SlotTable, plant_fossils
from esper.leyline import InputError, first_line, unknown_name
from esper.tasks import Split, Task
from esper.tolaria.compute import DEFAULT_COMPUTE, ComputeSettings, find_device
from esper.tolaria.executors.base import EpochResult, Executor, Measurement
from esper.tolaria.executors.loop import LoopExecutor
from esper.tolaria.executors.stacked import StackedExecutor
from esper.tolaria.records import Shard, share_out

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", EpochResult, Measurement)
ExecutorName = Literal["auto", "loop", "stacked", "native"]
Maker = Callable[[Task, int, int, torch.dtype], Executor]
_TIMED_BATCHES = 2
_LOG = logging.getLogger(__name__)
_FASTEST: dict[tuple[object, ...], str] = {}
"""The kinds that were found, by all that their speed depends on."""


def _make_native(task: Task, num_hosts: int, episode_length: int, dtype: torch.dtype) -> Executor:
    """Imported when it is asked for: numba takes a moment to import, and the kernels to compile."""
    try:
        from esper.tolaria.executors.native import NativeExecutor, compile_kernels

        compile_kernels(dtype)
    except (ImportError, RuntimeError, OSError) as error:  # no numba, or no folder or space for what it compiles
        raise InputError(f"the executor 'native' does not work here: {first_line(error)}") from error
    return NativeExecutor(task, num_hosts, episode_length, dtype)


_KINDS: dict[str, Maker] = {"loop": LoopExecutor, "stacked": StackedExecutor, "native": _make_native}


def executor_names() -> tuple[ExecutorName, ...]:
    return get_args(ExecutorName)


def make_executor(
    name: str,
    task: Task,
    num_hosts: int,
    episode_length: int,
    dtype: torch.dtype = torch.float32,
    compute: ComputeSettings = DEFAULT_COMPUTE,
) -> Executor:
    """The executor called `name`; "auto" takes the fastest one of those that can compute as asked."""
    chosen = choose_executor(name, task, num_hosts, compute)
    if not compute.needs_loop:
        return _KINDS[chosen](task, num_hosts, episode_length, dtype)

    def make(hosts: int, device: torch.device) -> LoopExecutor:
        return LoopExecutor(task, hosts, episode_length, dtype, compute, device)

    devices = [find_device(device) for device in compute.devices]
    one_cpu = len(devices) == 1 and devices[0].type == "cpu"
    return make(num_hosts, devices[0]) if one_cpu else DeviceExecutor(make, num_hosts, devices)


def choose_executor(name: str, task: Task, num_hosts: int, compute: ComputeSettings = DEFAULT_COMPUTE) -> str:
    """`name`, or the name of the fastest one for "auto"; what cannot compute as asked is refused."""
    if name not in executor_names():
        raise unknown_name("executor", name, executor_names())
    if num_hosts < 1:
        raise InputError(f"envs must be 1 or more; got {num_hosts}")
    compute.check_executor(name)
    for device in compute.devices:
        find_device(device)
    if name != "auto":
        return name
    return "loop" if compute.needs_loop else _fastest(task, num_hosts)


def _fastest(task: Task, num_hosts: int) -> str:
    """The kind that trains this many hosts of this task in the least time; a single host always loops."""
    if num_hosts == 1:
        return "loop"
    known = (task.name, task.host, str(task.host_settings), task.batch_size, num_hosts)
    if known not in _FASTEST:
        times = {}
        for kind in _KINDS:
            try:
                times[kind] = _time(kind, task, num_hosts)
            except InputError as error:
                _LOG.info("%s", error)
        _FASTEST[known] = min(times, key=lambda kind: times[kind])
        _LOG.info("the executor for %d hosts of %s is %r", num_hosts, task.name, _FASTEST[known])
    return _FASTEST[known]


def _time(kind: str, task: Task, num_hosts: int) -> float:
    """Seconds for a few minibatches with one seed in every host, the cheapest of two tries."""
    # A seed where the last kind fits costs what branches and groups of seeds add to a step.
    executor = _KINDS[kind](replace(task, batches_per_epoch=_TIMED_BATCHES), num_hosts, 1, torch.float32)
    executor.start(range(num_hosts), range(num_hosts))
    slot, blueprint = executor.catalogue.fits.nonzero()[-1].tolist()
    table = SlotTable.empty(num_hosts, len(executor.sites))
    executor.follow(plant_fossils(table, {slot: blueprint + 1}, executor.catalogue))
    times = []
    for _ in range(2):
        start = time.perf_counter()
        executor.train_epoch()
        times.append(time.perf_counter() - start)
    return min(times)


class SideStream:
    """A CUDA stream on which a shard works, kept in order with the stream of the caller, usually the default one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own = torch.cuda.Stream(device)

    def launch(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Do `work` here, after everything that the caller has queued; what it returns may not be ready yet."""
        self._own.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._own):
            return work(*args, **kwargs)

    def join(self) -> None:
        """Let what the caller queues from now on wait for all that was launched."""
        torch.cuda.current_stream(self._device).wait_stream(self._own)

    def hand_over(self, tensors: Iterable[Tensor]) -> None:
        """Tell the allocator that the caller uses tensors made here, so that their memory is not reused too early."""
        for tensor in tensors:
            tensor.record_stream(torch.cuda.current_stream(self._device))


def side_stream(device: torch.device) -> SideStream | None:
    """A stream for a CUDA device; the CPU has none."""
    return SideStream(device) if device.type == "cuda" else None


@dataclass(frozen=True, slots=True)
class _Run:
    """A shard where it runs."""

    executor: Executor
    shard: Shard
    stream: SideStream | None

    def hand_over(self, tensors: Iterable[Tensor]) -> None:
        if self.stream is not None:
            self.stream.hand_over(tensors)


class DeviceExecutor:
    """Runs consecutive hosts on one device each, as equally many as can be; results are on the CPU.

    Shards are launched one after the other without waiting, so that devices work at the same time, and the caller's
    streams wait for all of them before anything they made is used. What a host learns does not depend on its shard,
    and a saved state not on the number of devices. `Executor` says what the methods do.
    """

    def __init__(
        self,
        make: Callable[[int, torch.device], Executor],
        num_hosts: int,
        devices: Sequence[torch.device],
        open_stream: Callable[[torch.device], SideStream | None] = side_stream,
    ) -> None:
        self._runs = []
        for shard, device in zip(share_out(num_hosts, min(num_hosts, len(devices))), devices, strict=False):
            stream = open_stream(device)
            self._runs.append(_Run(_launch(stream, make, shard.num_hosts, device), shard, stream))
        self._join()
        front = self._runs[0].executor
        self.sites, self.catalogue, self.host_params = front.sites, front.catalogue, front.host_params

    def start(self, hosts: Sequence[int], seeds: Sequence[int]) -> None:
        def start(run: _Run) -> None:
            pairs = [(host, seed) for host, seed in zip(hosts, seeds, strict=True) if host in run.shard]
            run.executor.start([host - run.shard.first_host for host, _ in pairs], [seed for _, seed in pairs])

        self._each(start)

    def follow(self, table: SlotTable) -> None:
        self._each(lambda run: run.executor.follow(table.select(run.shard.hosts)))

    def train_epoch(self) -> EpochResult:
        return self._gather_records(self._each(lambda run: run.executor.train_epoch()))

    def measure(self, split: Split, *, what_if: bool = False, trials: Tensor | None = None) -> Measurement:
        def measure(run: _Run) -> Measurement:
            own = None if trials is None else trials[run.shard.hosts]
            return run.executor.measure(split, what_if=what_if, trials=own)

        return self._gather_records(self._each(measure))

    def measure_merit(self, hosts: Tensor) -> Tensor:
        return self._gather(self._each(lambda run: run.executor.measure_merit(hosts[run.shard.hosts])))

    def remember(self, hosts: Tensor) -> None:
        self._each(lambda run: run.executor.remember(hosts[run.shard.hosts]))

    def restore(self, hosts: Tensor, table: SlotTable) -> None:
        self._each(lambda run: run.executor.restore(hosts[run.shard.hosts], table.select(run.shard.hosts)))

    def network(self, host: int) -> GraftedModel:
        run = next(run for run in self._runs if host in run.shard)
        network = run.executor.network(host - run.shard.first_host)
        run.hand_over([*network.parameters(), *network.buffers()])
        return network

    def state_dict(self) -> dict[str, Any]:
        states = self._each(lambda run: run.executor.state_dict()["hosts"])
        return {"hosts": [host for state in states for host in state]}

    def load_state_dict(self, state: Mapping[str, Any], table: SlotTable) -> None:
        def load(run: _Run) -> None:
            run.executor.load_state_dict({"hosts": state["hosts"][run.shard.hosts]}, table.select(run.shard.hosts))

        self._each(load)

    def _each(self, work: Callable[[_Run], R]) -> list[R]:
        """Launch `work` on every shard, and only then wait for any."""
        results = [_launch(run.stream, work, run) for run in self._runs]
        self._join()
        return results

    def _join(self) -> None:
        for run in self._runs:
            if run.stream is not None:
                run.stream.join()

    def _gather(self, parts: Sequence[Tensor]) -> Tensor:
        """Tensors that the shards made, as one of all hosts on the CPU."""
        for run, part in zip(self._runs, parts, strict=True):
            run.hand_over([part])
        return torch.cat([part.cpu() for part in parts])

    def _gather_records(self, parts: Sequence[T]) -> T:
        names = [spec.name for spec in fields(parts[0])]
        return type(parts[0])(*(self._gather([getattr(part, name) for part in parts]) for name in names))


def _launch(stream: SideStream | None, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    return work(*args, **kwargs) if stream is None else stream.launch(work, *args, **kwargs)
