"""Hosts on several devices: the same episodes as on one, streams in order, and no stream where there is no CUDA."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

from esper.kasmina import UNLIMITED, SlotTable, act, begin_epoch, plant_fossils
from esper.leyline import InputError, Op
from esper.tamiyo import Random
from esper.tasks import OptimizerSettings
from esper.tolaria import ComputeSettings, EpisodeSettings, LoopExecutor, Population, StackedExecutor, compute
from esper.tolaria.executors import DeviceExecutor
from esper.tolaria.executors.choice import SideStream
from tests.second_device import SECOND
from tests.worlds import HOST_SETTINGS, host_task, tiny_task

CPU = torch.device("cpu")


def population(*devices: str, num_hosts: int = 5, **compute: Any) -> Population:
    settings = EpisodeSettings(what_if=True, compute=ComputeSettings(devices=devices, **compute))
    return Population(host_task("conv1d"), num_hosts, settings, executor="loop")


def live(population: Population, steps: int, seed: int = 0) -> None:
    dice = Random()
    dice.reset(population.num_hosts, seed)
    for _ in range(steps):
        population.step(dice.decide(population.situation))


def weights(population: Population) -> list[Tensor]:
    networks = [population.executor.network(host) for host in range(population.num_hosts)]
    return [parameter.detach().cpu() for network in networks for parameter in network.parameters()]


def assert_same(a: Population, b: Population) -> None:
    assert a.table.equals(b.table)
    assert all(torch.equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


@pytest.mark.parametrize("devices", [("cpu",) * 2, ("cpu",) * 3, ("cpu",) * 9])
def test_hosts_shared_out_over_devices_live_the_same_episodes(devices: tuple[str, ...]) -> None:
    shared, one = population(*devices), population("cpu")
    assert isinstance(shared.executor, DeviceExecutor)
    for each in (shared, one):
        each.start(range(5))
        live(each, 8)
        with torch.no_grad():  # one host panics and is taken back
            next(each.executor.network(3).parameters()).fill_(torch.nan)
        live(each, 4, seed=1)
        each.start([17, 18], hosts=[1, 4])
        live(each, 13, seed=2)
    assert_same(shared, one)
    assert shared.signals.val_loss.equal(one.signals.val_loss)
    assert one._governor.panics.tolist() == shared._governor.panics.tolist()


def test_what_was_saved_on_two_devices_goes_on_on_one() -> None:
    two = population("cpu", "cpu")
    two.start(range(5))
    live(two, 6)
    one = population("cpu")
    one.load_state_dict(two.state_dict())
    again = population("cpu", "cpu", "cpu")
    again.load_state_dict(one.state_dict())
    for each in (two, one, again):
        live(each, 6, seed=1)
    assert_same(two, one)
    assert_same(two, again)


class FakeCuda:
    """Stands in for torch's streams: which stream waits for which, what runs on it, and what is recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.diary: list[tuple[str, ...]] = []
        self.running = "default"
        self._streams = 0
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: self._new())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream(self, self.running))
        monkeypatch.setattr(torch.cuda, "stream", self._enter)
        monkeypatch.setattr(Tensor, "record_stream", lambda tensor, on: self.diary.append(("record", on.name)))

    def _new(self) -> "FakeStream":
        self._streams += 1
        return FakeStream(self, f"side{self._streams}")

    @contextmanager
    def _enter(self, stream: "FakeStream") -> Iterator[None]:
        before, self.running = self.running, stream.name
        try:
            yield
        finally:
            self.running = before


class FakeStream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self._cuda, self.name = cuda, name

    def wait_stream(self, other: "FakeStream") -> None:
        self._cuda.diary.append((self.name, "waits for", other.name))


def test_shards_wait_for_the_default_stream_and_it_waits_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)

    class Noted(LoopExecutor):
        def train_epoch(self) -> Any:
            cuda.diary.append(("train", cuda.running))
            return super().train_epoch()

    task = tiny_task()
    executor = DeviceExecutor(lambda hosts, device: Noted(task, hosts, 5), 3, [CPU, CPU], SideStream)
    one = LoopExecutor(task, 3, 5)
    for each in (executor, one):
        each.start(range(3), range(3))
    cuda.diary.clear()
    result, expected = executor.train_epoch(), one.train_epoch()
    for spec in fields(result):
        assert torch.equal(getattr(result, spec.name), getattr(expected, spec.name))
    records = 2 * len(fields(result))
    assert cuda.diary == [
        ("side1", "waits for", "default"),
        ("train", "side1"),
        ("side2", "waits for", "default"),
        ("train", "side2"),
        ("default", "waits for", "side1"),
        ("default", "waits for", "side2"),
        *[("record", "default")] * records,
    ]


def test_everything_that_touches_a_shard_runs_on_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    seen: list[tuple[str, str]] = []

    class Watched(LoopExecutor):
        def __getattribute__(self, name: str) -> Any:
            if name in ("start", "follow", "measure", "remember", "restore", "state_dict", "load_state_dict"):
                seen.append((name, cuda.running))
            return super().__getattribute__(name)

    task = tiny_task()
    executor = DeviceExecutor(lambda hosts, device: Watched(task, hosts, 5), 2, [CPU, CPU], SideStream)
    executor.start([0, 1], [0, 1])
    table = LoopExecutor(task, 2, 5).network(0).table
    table = type(table)(**{name: torch.cat([column, column]) for name, column in table.columns().items()})
    executor.follow(table)
    executor.measure(task.splits().val)
    everyone = torch.ones(2, dtype=torch.bool)
    executor.remember(everyone)
    executor.restore(everyone, table)
    executor.load_state_dict(executor.state_dict(), table)
    assert {where for _, where in seen} == {"side1", "side2"}
    assert {name for name, _ in seen} >= {"start", "follow", "measure", "remember", "restore", "state_dict"}
    cuda.diary.clear()
    network = executor.network(1)
    assert cuda.diary == [("record", "default")] * len([*network.parameters(), *network.buffers()])


@pytest.mark.parametrize("devices", [("cpu",), ("cpu", "cpu")])
def test_a_run_on_the_cpu_touches_no_stream(devices: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("stream code ran on the CPU")

    for name in ("Stream", "stream", "current_stream", "default_stream", "synchronize", "device_count"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    one = population(*devices, num_hosts=2, precision="float16")
    one.start(range(2))
    live(one, 3)
    one.load_state_dict(one.state_dict())


def test_a_device_that_is_not_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match=r"^unknown device 'cuda:7'; choose one of: cpu, cuda:0, cuda:1$"):
        population("cuda:0", "cuda:7")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InputError, match=r"^unknown device 'cuda'; choose one of: cpu$"):
        population("cuda")


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_starting_hosts_leaves_the_generators_of_devices_alone(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(seed: int) -> None:
        raise AssertionError("a generator of a device was seeded")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", refuse)
    one = Population(tiny_task(), 2, executor=executor)
    one.start(range(2))
    live(one, 3)


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        ({"devices": ()}, "at least one device"),
        ({"devices": ("tpu",)}, "'cpu', 'cuda' or 'cuda:<number>'; got 'tpu'"),
        ({"precision": "float8"}, "unknown precision 'float8'; choose one of: float32, bfloat16, float16"),
    ],
)
def test_impossible_ways_to_compute_are_refused(compute: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ComputeSettings(**compute)


@pytest.mark.parametrize("compute", [{"precision": "bfloat16"}, {"compile_hosts": True}, {"devices": ("cpu", "cpu")}])
def test_what_only_loop_can_do_is_refused_by_stacked_and_looped_by_choice(compute: dict[str, Any]) -> None:
    settings = EpisodeSettings(compute=ComputeSettings(**compute))
    with pytest.raises(InputError, match=r"executor 'stacked' computes in float32.*Use the executor 'loop'"):
        Population(tiny_task(), 32, settings, executor="stacked")
    assert not isinstance(Population(tiny_task(), 32, settings, executor="auto").executor, StackedExecutor)


@pytest.mark.parametrize("host", ["conv1d", "transformer"])
@pytest.mark.usefixtures("second_device")
def test_hosts_on_two_devices_live_the_same_episodes(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "_DEVICE_NAME", re.compile(f"cpu|{SECOND}"))
    task = host_task(host, optimizer=OptimizerSettings("sgd", lr=1e-2))

    def lived(*devices: str) -> Population:
        made = Population(task, 2, EpisodeSettings(compute=ComputeSettings(devices=devices)), executor="loop")
        made.start(range(2))
        live(made, 6)
        with torch.no_grad():  # one host panics and is taken back
            next(made.executor.network(1).parameters()).fill_(torch.nan)
        live(made, 2, seed=1)
        made.load_state_dict(made.state_dict())
        live(made, 1, seed=2)
        return made

    two, one = lived("cpu", str(SECOND)), lived("cpu")
    assert {parameter.device for parameter in two.executor.network(1).parameters()} == {SECOND}
    assert two.table.stage.equal(one.table.stage)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(weights(two), weights(one), strict=True))


@pytest.mark.parametrize("host", HOST_SETTINGS)
def test_everything_of_a_host_is_on_its_device(host: str) -> None:
    """On the meta device, which every machine has: whatever stays behind on the CPU makes an operation fail there."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # or moving to this one device makes new parameters
    try:
        task = host_task(host, optimizer=OptimizerSettings("sgd"))
        executor = LoopExecutor(task, 2, 5, device=torch.device("meta"))
        executor.start([0, 1], [0, 1])
        (kept, *_), (tried, *_) = (fits.nonzero().flatten().tolist() for fits in executor.catalogue.fits[:2])
        table = plant_fossils(SlotTable.empty(2, len(executor.sites)), {0: kept + 1}, executor.catalogue)
        germinate = torch.tensor([[1, tried, 0, Op.GERMINATE]] * 2)
        table, _ = act(table, germinate, executor.catalogue, torch.full((2,), UNLIMITED), torch.zeros(2))
        executor.follow(begin_epoch(table)[0])
        trained, measured = executor.train_epoch(), executor.measure(task.splits().val, what_if=True)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    assert {getattr(trained, spec.name).device.type for spec in fields(trained)} == {"meta"}
    assert {getattr(measured, spec.name).device.type for spec in fields(measured)} == {"meta"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_two_shards_on_cuda_equal_one() -> None:
    names = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    shared, one = population(names[0], names[-1]), population(names[0])
    for each in (shared, one):
        each.start(range(5))
        live(each, 8)
    for a, b in zip(weights(shared), weights(one), strict=True):
        assert torch.allclose(a, b, atol=1e-4)
