"""Hosts shared out over devices: a shard and an executor for each, on CUDA with a stream of its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from esper.kasmina import GraftedModel, SlotTable
from esper.tasks import Split
from esper.tolaria.executors.base import EpochResult, Executor, Measurement

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
class _Shard:
    executor: Executor
    first: int
    """The place among all hosts of its first one."""
    size: int
    stream: SideStream | None

    @property
    def hosts(self) -> slice:
        return slice(self.first, self.first + self.size)


class DeviceExecutor:
    """Runs consecutive hosts on one device each, as equally many as can be; results are on the CPU.

    Shards are launched one after the other without waiting, so that devices work at the same time, and the caller's
    streams wait for all of them before anything they made is used. What a host learns does not depend on its shard.
    """

    def __init__(
        self,
        make: Callable[[int, torch.device], Executor],
        num_hosts: int,
        devices: Sequence[torch.device],
        open_stream: Callable[[torch.device], SideStream | None] = side_stream,
    ) -> None:
        used = min(num_hosts, len(devices))
        bounds = [num_hosts * index // used for index in range(used + 1)]
        self._shards = []
        for device, first, end in zip(devices, bounds, bounds[1:], strict=False):
            stream = open_stream(device)
            executor = _launch(stream, make, end - first, device)
            self._shards.append(_Shard(executor, first, end - first, stream))
        self._join()
        front = self._shards[0].executor
        self.sites, self.catalogue, self.host_params = front.sites, front.catalogue, front.host_params

    def start(self, hosts: Sequence[int], seeds: Sequence[int]) -> None:
        """Put fresh hosts without seeds in these places."""

        def start(shard: _Shard) -> None:
            own = range(shard.first, shard.first + shard.size)
            pairs = [(host - shard.first, seed) for host, seed in zip(hosts, seeds, strict=True) if host in own]
            shard.executor.start([place for place, _ in pairs], [seed for _, seed in pairs])

        self._each(start)

    def follow(self, table: SlotTable) -> None:
        """Plant, remove and blend what the table says."""
        self._each(lambda shard: shard.executor.follow(table.select(shard.hosts)))

    def train_epoch(self) -> EpochResult:
        """Train all shards, devices side by side."""
        return self._gather(self._each(lambda shard: shard.executor.train_epoch()))

    def measure(self, split: Split, *, what_if: bool = False, trials: Tensor | None = None) -> Measurement:
        """Measure all shards, devices side by side."""

        def measure(shard: _Shard) -> Measurement:
            own = None if trials is None else trials[shard.hosts]
            return shard.executor.measure(split, what_if=what_if, trials=own)

        return self._gather(self._each(measure))

    def measure_merit(self, hosts: Tensor) -> Tensor:
        """Measure the merit of these hosts, devices side by side."""
        parts = self._each(lambda shard: shard.executor.measure_merit(hosts[shard.hosts]))
        for shard, part in zip(self._shards, parts, strict=True):
            if shard.stream is not None:
                shard.stream.hand_over([part])
        return torch.cat([part.cpu() for part in parts])

    def remember(self, hosts: Tensor) -> None:
        """Keep the present state of these hosts."""
        self._each(lambda shard: shard.executor.remember(hosts[shard.hosts]))

    def restore(self, hosts: Tensor, table: SlotTable) -> None:
        """Return these hosts to their last good state."""
        self._each(lambda shard: shard.executor.restore(hosts[shard.hosts], table.select(shard.hosts)))

    def network(self, host: int) -> GraftedModel:
        """The network of one host, on its device."""
        shard = next(shard for shard in self._shards if host < shard.first + shard.size)
        network = shard.executor.network(host - shard.first)
        if shard.stream is not None:
            shard.stream.hand_over([*network.parameters(), *network.buffers()])
        return network

    def state_dict(self) -> dict[str, Any]:
        """Where every host stands, the same for any number of devices."""
        states = self._each(lambda shard: shard.executor.state_dict()["hosts"])
        return {"hosts": [host for state in states for host in state]}

    def load_state_dict(self, state: Mapping[str, Any], table: SlotTable) -> None:
        """Go on from a saved state."""
        self._each(
            lambda shard: shard.executor.load_state_dict(
                {"hosts": state["hosts"][shard.hosts]}, table.select(shard.hosts)
            )
        )

    def _each(self, work: Callable[[_Shard], R]) -> list[R]:
        """Launch `work` on every shard, and only then wait for any."""
        results = [_launch(shard.stream, work, shard) for shard in self._shards]
        self._join()
        return results

    def _join(self) -> None:
        for shard in self._shards:
            if shard.stream is not None:
                shard.stream.join()

    def _gather(self, parts: list[T]) -> T:
        """One record of all hosts on the CPU from those of the shards."""
        names = [spec.name for spec in fields(parts[0])]
        for shard, part in zip(self._shards, parts, strict=True):
            if shard.stream is not None:
                shard.stream.hand_over(getattr(part, name) for name in names)
        joined = {name: torch.cat([getattr(part, name).cpu() for part in parts]) for name in names}
        return type(parts[0])(**joined)


def _launch(stream: SideStream | None, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    return work(*args, **kwargs) if stream is None else stream.launch(work, *args, **kwargs)
