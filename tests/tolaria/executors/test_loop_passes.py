"""Passes of one network: compiled ones fall back to how they are written."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.tamiyo import Random
from esper.tolaria import ComputeSettings, EpisodeSettings, Population
from esper.tolaria.executors import loop
from esper.tolaria.executors.loop import CompiledPasses, eval_pass
from tests.worlds import host_task

Backend = Callable[..., Callable[..., Any]]


@pytest.fixture
def compile_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Backend], list[dict[str, Any]]]:
    """Compile with a backend of one's own; returns the list of settings that passes are compiled with."""
    compile_really = torch.compile

    def use(backend: Backend) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []

        def spied(function: Callable[..., Any], **settings: Any) -> Any:
            asked.append({"function": function.__name__} | settings)
            return compile_really(function, backend=backend, **settings)

        monkeypatch.setattr(torch, "compile", spied)
        return asked

    monkeypatch.setattr(loop, "COMPILED", CompiledPasses())
    torch.compiler.reset()
    return use


def live(compile_hosts: bool, steps: int = 12) -> tuple[Population, list[Tensor]]:
    """A random life of two hosts; returns it and the weights it led to."""
    settings = EpisodeSettings(what_if=True, compute=ComputeSettings(compile_hosts=compile_hosts))
    population, dice = Population(host_task("mlp"), 2, settings, executor="loop"), Random()
    population.start([0, 1])
    dice.reset(2, 3)
    for _ in range(steps):
        population.step(dice.decide(population.situation))
    networks = [population.executor.network(host) for host in range(2)]
    return population, [parameter.detach() for network in networks for parameter in network.parameters()]


def same(compiled: tuple[Population, list[Tensor]], eager: tuple[Population, list[Tensor]]) -> bool:
    weights = zip(compiled[1], eager[1], strict=True)
    return compiled[0].table.equals(eager[0].table) and all(torch.equal(a, b) for a, b in weights)


def test_a_compiled_host_sees_its_seeds_come_and_go(
    compile_with: Callable[[Backend], list[dict[str, Any]]],
) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def count(graph: torch.fx.GraphModule, example: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    asked = compile_with(count)
    eager, compiled = live(compile_hosts=False), live(compile_hosts=True)
    assert same(compiled, eager)
    assert int((eager[0].table.blueprint > 0).sum()) > 0
    assert asked == [{"function": name, "dynamic": True} for name in ("eval_pass", "train_pass")]
    assert 2 < len(graphs) < 30  # both hosts share what is compiled, whatever their batches are


def test_a_backend_that_fails_is_told_once_and_training_goes_on_as_written(
    compile_with: Callable[[Backend], list[dict[str, Any]]], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(graph: torch.fx.GraphModule, example: object) -> Callable[..., Any]:
        raise FileNotFoundError("no compiler on this machine")

    asked = compile_with(fail)
    eager = live(compile_hosts=False)
    with caplog.at_level(logging.WARNING, logger="esper"):
        compiled = live(compile_hosts=True)
    assert same(compiled, eager)
    assert len(asked) == 1
    (told,) = caplog.records
    assert told.levelno == logging.WARNING
    assert "BackendCompilerFailed" in told.message
    assert "FileNotFoundError: no compiler on this machine" in told.message


def test_a_fault_of_the_network_itself_is_raised(compile_with: Callable[[Backend], list[dict[str, Any]]]) -> None:
    compile_with(lambda graph, example: graph.forward)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        CompiledPasses()(eval_pass, nn.Linear(3, 2), torch.zeros(1, 4))
