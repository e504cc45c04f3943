"""Hosts shared out over devices: a shard and an executor for each, on CUDA with a stream of its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from esper.kasmina import GraftedModel, SlotTable
from esper.tasks import Split
from esper.tolaria.executors.base import EpochResult, Executor, Measurement
from esper.tolaria.shards import Shard, share_out

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", EpochResult, Measurement)


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

    @property
    def hosts(self) -> slice:
        return self.shard.hosts

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
        self._each(lambda run: run.executor.follow(table.select(run.hosts)))

    def train_epoch(self) -> EpochResult:
        return self._gather_records(self._each(lambda run: run.executor.train_epoch()))

    def measure(self, split: Split, *, what_if: bool = False, trials: Tensor | None = None) -> Measurement:
        def measure(run: _Run) -> Measurement:
            own = None if trials is None else trials[run.hosts]
            return run.executor.measure(split, what_if=what_if, trials=own)

        return self._gather_records(self._each(measure))

    def measure_merit(self, hosts: Tensor) -> Tensor:
        return self._gather(self._each(lambda run: run.executor.measure_merit(hosts[run.hosts])))

    def remember(self, hosts: Tensor) -> None:
        self._each(lambda run: run.executor.remember(hosts[run.hosts]))

    def restore(self, hosts: Tensor, table: SlotTable) -> None:
        self._each(lambda run: run.executor.restore(hosts[run.hosts], table.select(run.hosts)))

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
            run.executor.load_state_dict({"hosts": state["hosts"][run.hosts]}, table.select(run.hosts))

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
