"""The network compiles to one graph, and learning on it equals learning without."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from esper.simic.agent.network import RecurrentActorCritic
from esper.simic.agent.rollout_buffer import generalized_advantages
from esper.simic.control import MaskedCategorical, select_masks
from tests.simic.builders import agent_with_round, make_agent, parameters_of


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.config.allow_rnn = True
    yield
    torch._dynamo.reset()


class CountingBackend:
    """Runs graphs as they are and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module: torch.fx.GraphModule, _inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += 1
        return module.forward


def arguments(network: RecurrentActorCritic) -> tuple[Any, ...]:
    actions = torch.zeros(3, 5, 4, dtype=torch.long)
    selected = select_masks(network.spec, network.spec.all_legal((3, 5)), actions)
    return torch.randn(3, 5, 6), actions, selected, network.get_initial_hidden(3)


def test_forward_and_evaluate_actions_are_one_graph_each() -> None:
    network = make_agent()._base_network
    obs, actions, selected, hidden = arguments(network)
    for function, inputs in (
        (network.forward, (obs, hidden)),
        (network.evaluate_actions, (obs, actions, selected, hidden)),
    ):
        backend = CountingBackend()
        compiled = torch.compile(function, backend=backend, fullgraph=True)
        for ours, plain in zip(compiled(*inputs), function(*inputs), strict=True):
            torch.testing.assert_close(ours, plain)
        assert backend.graphs == 1


def test_the_masked_distribution_is_one_graph_without_validation_and_breaks_with_it() -> None:
    def entropy(logits: torch.Tensor, mask: torch.Tensor, validate: bool) -> torch.Tensor:
        return MaskedCategorical(logits, mask, validate=validate).normalized_entropy()

    inputs = (torch.randn(4, 3), torch.ones(4, 3, dtype=torch.bool))
    backend = CountingBackend()
    torch.compile(entropy, backend=backend, fullgraph=True)(*inputs, validate=False)
    assert backend.graphs == 1
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(entropy, backend=backend, fullgraph=True)(*inputs, validate=True)


def test_a_host_read_in_a_hot_path_would_be_seen() -> None:
    class Planted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum().item() > 0 else -x

    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        torch.compile(Planted(), backend="eager", fullgraph=True)(torch.randn(3))


def test_advantages_stay_out_of_compiled_callers() -> None:
    def scaled(rewards: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros_like(rewards)
        return 2.0 * generalized_advantages(2.0 * rewards, zeros, zeros, zeros.bool(), 0.9, 0.9)  # type: ignore[no-any-return]

    rewards = torch.randn(2, 7)
    backend = CountingBackend()
    torch.testing.assert_close(torch.compile(scaled, backend=backend)(rewards), scaled(rewards))
    assert backend.graphs == 2


def compile_with(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let modules compile themselves with another backend than the real one."""
    compile_in_place = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda self, **options: compile_in_place(self, backend=backend, **options)
    )


@pytest.mark.parametrize("compile_network", [False, True])
def test_the_network_runs_compiled_only_if_asked_to(compile_network: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = CountingBackend()
    compile_with(backend, monkeypatch)
    agent = make_agent(compile_network=compile_network)
    agent.act(torch.randn(4, 6), agent.spec.all_legal((4,)), agent.initial_hidden())
    assert (backend.graphs > 0) is compile_network


def test_learning_on_a_compiled_network_equals_learning_without(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_with("eager", monkeypatch)
    options: dict[str, Any] = {"epochs": 2, "max_steps": 4, "target_kl": None}
    plain, compiled = agent_with_round(**options), make_agent(**options, compile_network=True)
    compiled._base_network.load_state_dict(plain._base_network.state_dict())
    ours, theirs = compiled.update(copy.deepcopy(plain.buffer)), plain.update()
    assert ours["total_loss"] == pytest.approx(theirs["total_loss"], abs=1e-5)
    assert ours["head_grad_norms"]["op"] == pytest.approx(theirs["head_grad_norms"]["op"], rel=1e-4)
    torch.testing.assert_close(parameters_of(compiled), parameters_of(plain), atol=1e-5, rtol=1e-5)
    assert list(compiled._base_network.state_dict()) == list(plain._base_network.state_dict())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_learning_works_with_the_real_compiler() -> None:
    metrics = agent_with_round(compile_network=True, epochs=2).update()
    assert metrics["optimizer_steps"] >= 1
    assert metrics["ratio_max"] < 2.0
