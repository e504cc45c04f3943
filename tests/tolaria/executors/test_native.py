"""The native executor by itself: when it is chosen, what it says where it cannot run, what it keeps."""

import logging
import sys

import pytest
import torch

from esper.leyline import InputError
from esper.tasks import Task
from esper.tolaria import Population
from esper.tolaria.executors import choice, choose_executor, native, native_hosts
from esper.tolaria.executors.native import NativeExecutor
from tests.worlds import host_task

WAIT = torch.zeros(3, 4, dtype=torch.int64)


def test_the_fastest_of_all_executors_that_can_run_a_host_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    times, real = {"loop": 3.0, "stacked": 2.0, "native": 1.0}, choice._time

    def time_of(kind: str, task: Task, num_hosts: int) -> float:
        real(kind, task, num_hosts)  # or raises that it cannot
        return times[kind]

    monkeypatch.setattr(choice, "_FASTEST", {})
    monkeypatch.setattr(choice, "_time", time_of)
    assert choose_executor("auto", host_task("conv1d"), 4) == "native"
    assert choose_executor("auto", host_task("conv2d"), 4) == "stacked"


def test_without_numba_another_executor_is_chosen_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(choice, "_FASTEST", {})
    monkeypatch.setitem(sys.modules, "esper.tolaria.executors.native", None)
    with pytest.raises(InputError, match="the executor 'native' does not work here: import of"):
        Population(host_task("conv1d"), 2, executor="native")
    assert choose_executor("auto", host_task("conv1d"), 8) in ("loop", "stacked")
    assert "'native' does not work here" in caplog.text


def test_where_compiled_code_cannot_be_kept_that_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: torch.dtype) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(native, "compile_kernels", fail)
    with pytest.raises(InputError, match=r"the executor 'native' does not work here: .*No space left on device"):
        Population(host_task("conv1d"), 2, executor="native")


def test_a_host_beyond_the_memory_of_a_pass_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_hosts, "_MOST_ROWS", 10)
    with pytest.raises(InputError, match="'native' has no room for hosts as large as this; use 'stacked' or 'loop'"):
        Population(host_task("conv1d"), 2, executor="native")
    monkeypatch.setattr(choice, "_FASTEST", {})
    assert choose_executor("auto", host_task("conv1d"), 2) in ("loop", "stacked")


def test_seeds_that_stay_keep_their_parameters_and_moments_when_others_come_and_go() -> None:
    population = Population(host_task("conv1d"), 3, executor="native")
    population.start(range(3))
    executor = population.executor
    assert isinstance(executor, NativeExecutor)
    population.step(torch.tensor([[2, 2, 3, 1]]).expand(3, -1))
    population.step(WAIT)
    before, size = executor._now[0].copy(), executor.host_params
    table = population.table.clone()
    table.blueprint[0, 0], table.blueprint[0, 4] = 1, 1
    executor.follow(table)
    mine = executor._now[0]
    first = int(executor._programs.units(mine.planted)[1 + 1])
    kept = len(before.weights) - size
    assert mine.steps.tolist() == [before.steps[0], 0.0, before.steps[1], 0.0]
    for name in ("weights", "first", "second"):
        old, new = getattr(before, name), getattr(mine, name)
        assert (new[:size] == old[:size]).all()
        assert (new[first : first + kept] == old[size:]).all()
    executor.follow(population.table)
    assert (executor._now[0].weights == before.weights).all()
