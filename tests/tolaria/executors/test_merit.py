"""Merit by all executors: the same numbers, at the right time, and training as if nobody had looked."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from esper.kasmina import blueprints_of
from esper.leyline import Blend, Op
from esper.tamiyo import Random
from esper.tolaria import ComputeSettings, EpisodeSettings, Population
from esper.tolaria.executors import EpochResult
from tests.worlds import HOST_SETTINGS, host_task

EXECUTORS = ["loop", "stacked", "native"]


def live(population: Population, steps: int, seed: int = 0) -> None:
    dice = Random()
    dice.reset(population.num_hosts, seed)
    for _ in range(steps):
        population.step(dice.decide(population.situation))


def waiting(population: Population, steps: int) -> list[Tensor]:
    """What is known of merit before each of so many steps in which nothing is planted."""
    known = []
    for _ in range(steps):
        known.append(population.situation.merit)
        population.step(torch.zeros(population.num_hosts, 4, dtype=torch.int64))
    return [merit for merit in known if merit is not None]


def make(
    executor: str, hosts: int = 3, *, host: str = "conv1d", dtype: torch.dtype = torch.float32, **how: Any
) -> Population:
    population = Population(host_task(host), hosts, EpisodeSettings(**how), executor=executor, dtype=dtype)
    population.start(range(hosts))
    return population


def connecting(population: Population) -> Tensor:
    """`[S, B]` bool: the kinds that connect and fit."""
    family = population.executor.sites[0].shape.family
    reads = [kind.reads is not None for kind in blueprints_of(family)]
    return population.executor.catalogue.fits & torch.tensor(reads)


@pytest.mark.parametrize("host", HOST_SETTINGS)
def test_executors_agree_on_merit_among_planted_seeds(host: str) -> None:
    names = EXECUTORS if host in ("mlp", "conv1d") else EXECUTORS[:2]
    loop, *others = (make(executor, 6, host=host, dtype=torch.float64) for executor in names)
    hosts = torch.tensor([True, True, False, True, True, True])
    planted = 0
    for steps in range(1, 6):
        for population in (loop, *others):
            live(population, 1, seed=steps)
        mine = loop.executor.measure_merit(hosts)
        known = connecting(loop) & ~loop.table.occupied[..., None] & hosts[:, None, None]
        assert torch.equal(mine.isfinite(), known)
        for population in others:
            measured = population.executor.measure_merit(hosts)
            torch.testing.assert_close(measured, mine, rtol=1e-9, atol=1e-9, equal_nan=True)
        planted += int(loop.table.blended.sum())
    assert planted > 3


@pytest.mark.parametrize("executor", EXECUTORS)
def test_training_goes_on_as_if_nobody_had_looked(executor: str) -> None:
    looked, alone = (make(executor, merit=merit) for merit in (True, False))
    before = torch.get_rng_state()
    for population in (looked, alone):
        live(population, 10)
    assert torch.equal(torch.get_rng_state(), before)
    assert looked.table.equals(alone.table)
    assert alone.merit.isnan().all()
    for host in range(3):
        pairs = zip(looked.executor.network(host).parameters(), alone.executor.network(host).parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    states = [population.executor.state_dict()["hosts"] for population in (looked, alone)]
    if executor == "loop":
        for mine, other in zip(*states, strict=True):
            assert all(torch.equal(mine["streams"][name], other["streams"][name]) for name in mine["streams"])
            assert torch.equal(mine["batches"]["order"], other["batches"]["order"])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_merit_is_measured_after_1_2_4_and_8_epochs(executor: str) -> None:
    known = waiting(make(executor), 10)
    assert known[0].isnan().all()
    changed = [epoch for epoch in range(1, 10) if not known[epoch].equal(known[epoch - 1])]
    same = [epoch for epoch in (3, 5, 6, 7, 9) if torch.equal(known[epoch].nan_to_num(), known[epoch - 1].nan_to_num())]
    assert {1, 2, 4, 8} <= set(changed)
    assert same == [3, 5, 6, 7, 9]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_merit_depends_on_the_host_s_own_seed_alone(executor: str) -> None:
    together = make(executor, dtype=torch.float64)
    waiting(together, 2)
    alone = Population(host_task("conv1d"), 1, executor=executor, dtype=torch.float64)
    alone.start([1])
    waiting(alone, 2)
    torch.testing.assert_close(together.merit[1:2], alone.merit, rtol=1e-6, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_is_occupied_has_no_merit_and_a_new_episode_forgets(executor: str) -> None:
    population = make(executor)
    waiting(population, 1)
    slot, kind = population.executor.catalogue.fits.nonzero()[-1].tolist()
    population.step(torch.tensor([[slot, kind, Blend.INSTANT, Op.GERMINATE]] * 3))
    merit = population.situation.merit
    assert merit is not None
    assert merit[:, slot].isnan().all()
    assert merit[:, 0].isfinite().any()
    population.start([7], [1])
    assert population.merit[1].isnan().all()
    assert population.merit[0].isfinite().any()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_nothing_is_measured_where_nothing_can_be_planted(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    population = make(executor, budget=0)
    monkeypatch.setattr(population.executor, "measure_merit", None)
    waiting(population, 3)
    assert population.merit.isnan().all()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_epoch_that_is_rolled_back_leaves_merit_as_it_was(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    population = make(executor)
    waiting(population, 1)
    before = population.merit.clone()
    epoch = population.executor.train_epoch

    def second_host_fails() -> EpochResult:
        result = epoch()
        return replace(result, loss=result.loss.where(torch.tensor([True, False, True]), math.nan))

    monkeypatch.setattr(population.executor, "train_epoch", second_host_fails)
    waiting(population, 1)  # the second epoch, after which merit is measured
    same = [torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, population.merit, strict=True)]
    assert same == [False, True, False]


def test_a_saved_population_remembers_its_merit() -> None:
    for executor in EXECUTORS:
        population, resumed = make(executor), make(executor)
        waiting(population, 3)
        resumed.load_state_dict(population.state_dict())
        assert torch.equal(resumed.merit.nan_to_num(), population.merit.nan_to_num())
        for each in (population, resumed):
            waiting(each, 2)
        assert torch.equal(resumed.merit.nan_to_num(), population.merit.nan_to_num())


def test_devices_measure_what_one_measures() -> None:
    one = make("loop")
    two = make("loop", compute=ComputeSettings(devices=("cpu", "cpu")))
    for population in (one, two):
        waiting(population, 2)
    assert torch.equal(one.merit.nan_to_num(), two.merit.nan_to_num())
