"""Helpers for one network: compiled passes that fall back, and evaluation with forced alphas."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import GraftedModel
from esper.tamiyo import Random
from esper.tolaria import ComputeSettings, EpisodeSettings, Population, measure
from esper.tolaria.executors import loop
from esper.tolaria.helpers import CompiledPasses, Passes, evaluate
from tests.worlds import host_task, tiny_task

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
        CompiledPasses().evaluate(nn.Linear(3, 2), torch.zeros(1, 4))


def grown() -> tuple[Population, GraftedModel]:
    """A host with a blended and an isolated seed."""
    population, dice = Population(tiny_task(), 1, executor="loop"), Random()
    population.start([0])
    dice.reset(1, 0)
    while not (
        (population.table.alpha > 0).any() and (population.table.occupied & (population.table.alpha == 0)).any()
    ):
        population.step(dice.decide(population.situation))
    return population, population.executor.network(0)


def test_forced_alphas_are_evaluated_in_one_pass_as_one_by_one() -> None:
    population, model = grown()
    split = population.task.splits().val
    occupied = model.table.occupied[0].nonzero().flatten().tolist()
    alphas = torch.zeros(3, len(model.sites))
    alphas[1, occupied] = 1.0
    alphas[2, occupied[0]] = 0.5
    loss, score = evaluate(model, population.task, split, alphas)
    for row, alpha in enumerate(alphas):
        with model.override_alphas({slot: float(alpha[slot]) for slot in occupied}), torch.inference_mode():
            logits = model(split.x)
        assert loss[row] == pytest.approx(float(nn.functional.cross_entropy(logits, split.y)), rel=1e-5)
        assert score[row] == (logits.argmax(-1) == split.y).float().mean()


def test_measuring_runs_in_inference_and_eval_mode() -> None:
    seen: list[tuple[bool, bool]] = []

    class Spy(Passes):
        def evaluate(self, model: nn.Module, x: Tensor) -> Tensor:
            seen.append((torch.is_inference_mode_enabled(), model.training))
            return super().evaluate(model, x)

    population, model = grown()
    measure(model, population.task, population.task.splits().val, what_if=True, passes=Spy())
    assert seen == [(True, False)]
