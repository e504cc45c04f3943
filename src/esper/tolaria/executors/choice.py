"""Choosing an executor: by name, or by timing both for a moment on the task at hand."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

import torch

from esper.kasmina import SlotTable, plant_fossils
from esper.leyline import InputError, unknown_name
from esper.tasks import Task
from esper.tolaria.compute import DEFAULT_COMPUTE, ComputeSettings, find_device
from esper.tolaria.executors.base import Executor
from esper.tolaria.executors.devices import DeviceExecutor
from esper.tolaria.executors.loop import LoopExecutor
from esper.tolaria.executors.stacked import StackedExecutor

ExecutorName = Literal["auto", "loop", "stacked"]
Maker = Callable[[Task, int, int, torch.dtype], Executor]
_KINDS: dict[str, Maker] = {"loop": LoopExecutor, "stacked": StackedExecutor}
_TIMED_BATCHES = 2
_LOG = logging.getLogger(__name__)


def executor_names() -> tuple[str, ...]:
    return get_args(ExecutorName)


def make_executor(
    name: str,
    task: Task,
    num_hosts: int,
    episode_length: int,
    dtype: torch.dtype = torch.float32,
    compute: ComputeSettings = DEFAULT_COMPUTE,
) -> Executor:
    """The executor called `name`; "auto" takes the faster one of those that can compute as asked."""
    chosen = choose_executor(name, task, num_hosts, compute)
    if not compute.needs_loop:
        return _KINDS[chosen](task, num_hosts, episode_length, dtype)

    def make(hosts: int, device: torch.device) -> LoopExecutor:
        return LoopExecutor(task, hosts, episode_length, dtype, compute, device)

    devices = [find_device(device) for device in compute.devices]
    one_cpu = len(devices) == 1 and devices[0].type == "cpu"
    return make(num_hosts, devices[0]) if one_cpu else DeviceExecutor(make, num_hosts, devices)


def choose_executor(name: str, task: Task, num_hosts: int, compute: ComputeSettings = DEFAULT_COMPUTE) -> str:
    """`name`, or the name of the faster one for "auto"; what cannot compute as asked is refused."""
    if name not in executor_names():
        raise unknown_name("executor", name, executor_names())
    if num_hosts < 1:
        raise InputError(f"envs must be 1 or more; got {num_hosts}")
    compute.check_executor(name)
    for device in compute.devices:
        find_device(device)
    if name != "auto":
        return name
    return "loop" if compute.needs_loop else _faster(task, num_hosts)


_FASTER: dict[tuple[object, ...], str] = {}


def _faster(task: Task, num_hosts: int) -> str:
    """The kind that trains this many hosts of this task in less time; a single host always loops."""
    if num_hosts == 1:
        return "loop"
    known = (task.name, task.host, str(task.host_settings), task.batch_size, num_hosts)
    if known not in _FASTER:
        try:
            times = {kind: _time(kind, task, num_hosts) for kind in _KINDS}
            _FASTER[known] = min(times, key=lambda kind: times[kind])
        except InputError as error:
            _LOG.info("the executor is 'loop': %s", error)
            _FASTER[known] = "loop"
    return _FASTER[known]


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
