"""Loops that are not the plainest: compiled, mixed precision, accumulated and clipped gradients, closures."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.leyline import Stage
from tests.api.growing.builders import (
    LIFE,
    Script,
    accuracy,
    assert_same,
    cull,
    germinate,
    grow,
    make_data,
    make_grower,
    make_mlp,
    train,
)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def test_a_compiled_model_compiles_at_most_once_per_structural_change() -> None:
    compiled_graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        compiled_graphs.append(graph.code)
        return graph.forward

    networks: list[Any] = []  # empty until there is something compiled to ask

    def evaluate() -> float:
        for network in networks:
            network.eval()
            with torch.no_grad():
                return 0.5 + 1e-3 * float(network(x).tanh().mean())
        return 0.5

    x, y = make_data()
    model = make_mlp()
    script = [germinate(0), germinate(1), *LIFE[2:6], cull(0)]
    grower = make_grower(model=model, controller=Script(script), evaluate=evaluate)
    compiled: Any = torch.compile(grower.model, backend=backend)
    networks.append(compiled)
    optimizer = grower.grafted.optimizer
    assert optimizer is not None
    counts = []
    stages: list[list[int]] = []
    for _ in range(12):
        compiled.train()
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(compiled(x), y).backward()
            optimizer.step()
        grower.step()
        assert torch.equal(compiled(x), grower.model(x))
        counts.append(len(compiled_graphs))
        compiled_graphs.clear()
        stages.append(grower.grafted.table.stage[0].tolist())
    # Training and evaluation are a graph each, as without growth, so a change costs one new version of each.
    quiet = [count for count, before, after in zip(counts[1:], stages[:-1], stages[1:], strict=True) if before == after]
    assert sum(quiet) == 0
    assert max(counts[1:]) <= 2


def test_bfloat16_autocast_with_a_scaler_keeps_working_across_growth() -> None:
    model = make_mlp()
    grower = make_grower(model=model, controller=Script([*LIFE, germinate(1)]), evaluate=accuracy)
    optimizer = grower.grafted.optimizer
    assert optimizer is not None
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    x, y = make_data()
    losses = []
    for _ in range(10):
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(grower.model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        assert grower.step(loss=loss).rolled_back is None
    assert grower.grafted.slot("1").stage is Stage.FOSSILIZED
    assert {parameter.dtype for parameter in grower.model.parameters()} == {torch.float32}
    assert losses[-1] < losses[0]


def test_accumulated_gradients_reach_seeds_like_one_large_batch() -> None:
    def grown(parts: int) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = make_mlp().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        grower = make_grower(
            model=model,
            optimizer=optimizer,
            example=make_data()[0].double(),
            evaluate=lambda: 0.5,
            controller=Script(LIFE),
        )
        x, y = make_data()
        for _ in range(7):
            optimizer.zero_grad()
            for rows in torch.arange(16).chunk(parts):
                (nn.functional.cross_entropy(grower.model(x[rows].double()), y[rows]) / parts).backward()
            optimizer.step()
            grower.step()
        return dict(grower.model.state_dict())

    torch.testing.assert_close(grown(1), grown(4), rtol=0, atol=1e-12)


def test_steps_with_a_closure_are_seen() -> None:
    grower = make_grower(controller=Script(LIFE))
    optimizer = grower.grafted.optimizer
    assert optimizer is not None
    x, y = make_data()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(grower.model(x), y)
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(closure)  # type: ignore[arg-type]  # torch promises a float and takes a tensor
        grower.step()
    assert grower.grafted.slot("1").stage is Stage.BLENDING


def test_channels_last_stays_channels_last() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 3))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(4, 3, 9, 9).contiguous(memory_format=torch.channels_last)
    for blueprint in range(5):
        fresh = nn.Sequential(*model[:2], *model[2:])
        grower = make_grower(
            model=fresh, at=["1"], example=x, evaluate=lambda: 0.5, controller=Script([germinate(0, blueprint)])
        )
        optimizer = grower.grafted.optimizer
        assert optimizer is not None
        for _ in range(5):
            optimizer.zero_grad()
            grower.model(x).square().mean().backward()
            optimizer.step()
            grower.step()
        assert grower.model(x).is_contiguous(memory_format=torch.channels_last)
        for module in fresh.modules():
            module._forward_hooks.clear()


def test_growth_never_changes_what_the_host_would_have_drawn() -> None:
    def dice(script: list[Any]) -> Tensor:
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        grower = make_grower(model=model, controller=Script(script))
        grow(grower, 8)
        return torch.get_rng_state()

    assert torch.equal(dice(LIFE), dice([]))


def test_an_idle_grower_leaves_training_bit_for_bit_alone() -> None:
    torch.manual_seed(0)
    model, twin = make_mlp(), make_mlp()
    twin.load_state_dict(model.state_dict())
    grower = make_grower(model=model)
    optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-2)
    state = torch.get_rng_state()
    for _ in range(3):
        train(grower)
        grower.step()
    torch.set_rng_state(state)
    x, y = make_data()
    for _ in range(6):
        rows = torch.randperm(len(x))[:8]
        optimizer.zero_grad()
        nn.functional.cross_entropy(twin(x[rows]), y[rows]).backward()
        optimizer.step()
    assert_same(dict(model.named_parameters()), dict(twin.named_parameters()))
