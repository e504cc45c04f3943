"""A rate of their own for seeds: that of their neighbours times the scale in every step, and no new group is seen."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler

import esper
from esper.leyline import InputError
from tests.api.growing.builders import LIFE, Script, assert_same, germinate, grow, make_data, make_grower, make_mlp

SEEDS_IN_BOTH_GROUPS = [germinate(0, 2), germinate(1, 3)]


def grower_with(optimizer_of: Callable[[nn.Sequential], Optimizer], scale: float, **settings: Any) -> esper.Grower:
    torch.manual_seed(3)
    model = make_mlp()
    script = {"controller": Script(SEEDS_IN_BOTH_GROUPS), "at": ["0", "3"], "seed": 5}
    return make_grower(model=model, optimizer=optimizer_of(model), seed_lr_scale=scale, **(script | settings))


def sgd(model: nn.Sequential) -> Optimizer:
    groups = [{"params": [*model[0].parameters()], "lr": 0.1}, {"params": [*model[2:].parameters()], "lr": 0.02}]
    return torch.optim.SGD(groups)


def take_step(grower: esper.Grower, optimizer: Optimizer) -> list[tuple[Tensor, Tensor]]:
    """The change of each seed's parameters by one optimiser step, and the gradients that it went by."""
    x, y = make_data()
    optimizer.zero_grad()
    nn.functional.cross_entropy(grower.model(x), y).backward()
    seeds = list(grower.grafted.slots.parameters())
    before = [(p.detach().clone(), torch.zeros_like(p) if p.grad is None else p.grad.clone()) for p in seeds]
    optimizer.step()
    return [(p.detach() - value, gradient) for p, (value, gradient) in zip(seeds, before, strict=True)]


@pytest.mark.parametrize("scale", [0.25, 3.0])
def test_seeds_step_by_the_scale_times_the_present_rate_of_their_neighbours(scale: float) -> None:
    grower = grower_with(sgd, scale)
    optimizer = grower.grafted.optimizer
    assert optimizer is not None
    scheduler = lr_scheduler.LambdaLR(optimizer, [lambda step: 0.5**step, lambda step: 1.0 + step])
    grow(grower, 2)
    first = len(list(grower.grafted.slots[0].parameters()))
    for _ in range(3):
        rates = [group["lr"] for group in optimizer.param_groups]
        assert len(rates) == 2
        steps = take_step(grower, optimizer)
        assert all(any(bool(gradient.any()) for _, gradient in part) for part in (steps[:first], steps[first:]))
        for index, (change, gradient) in enumerate(steps):
            expected = -scale * rates[0 if index < first else 1] * gradient
            torch.testing.assert_close(change, expected, rtol=1e-4, atol=1e-7)
        scheduler.step()


def test_the_host_learns_as_it_does_beside_seeds_of_the_same_rate() -> None:
    hosts = []
    for scale in (1.0, 0.1):
        grower = grower_with(sgd, scale, controller=Script(LIFE))
        grow(grower, 2)  # the seed learns in isolation
        hosts.append([parameter.detach().clone() for parameter in grower.grafted.host.parameters()])
    assert_same(*hosts)


def adamw(model: nn.Sequential) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def named(model: nn.Sequential) -> Optimizer:
    return torch.optim.AdamW(model.named_parameters(), lr=1e-2)


@pytest.mark.parametrize("make", [sgd, adamw, named])
def test_between_two_steps_the_groups_are_those_of_a_scale_of_one(make: Callable[[nn.Sequential], Optimizer]) -> None:
    growers = [grower_with(make, scale) for scale in (1.0, 0.5)]
    for grower in growers:
        grow(grower, 3)
    one, other = (grower.grafted.optimizer for grower in growers)
    assert one is not None
    assert other is not None
    for mine, theirs in zip(one.param_groups, other.param_groups, strict=True):
        assert [p.shape for p in mine["params"]] == [p.shape for p in theirs["params"]]
        assert {k: v for k, v in mine.items() if k != "params"} == {k: v for k, v in theirs.items() if k != "params"}


def test_a_step_that_raises_leaves_no_group_behind() -> None:
    grower = grower_with(adamw, 0.5)
    optimizer = grower.grafted.optimizer
    assert optimizer is not None
    grow(grower, 2)
    before = [list(group["params"]) for group in optimizer.param_groups]

    def fail() -> float:
        raise RuntimeError("out of memory")

    for go_on in (lambda: grow(grower, 1), grower.state_dict):
        with pytest.raises(RuntimeError, match="out of memory"):
            optimizer.step(fail)
        assert len(optimizer.param_groups) == 2
        go_on()
    after = [group["params"] for group in optimizer.param_groups]
    assert [list(map(id, params)) for params in after] == [list(map(id, params)) for params in before]


def test_a_rate_that_is_a_tensor_is_scaled_and_stays_the_hosts() -> None:
    grower = grower_with(lambda model: torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01)), 0.5)
    grow(grower, 3)
    optimizer = grower.grafted.optimizer
    assert optimizer is not None
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.01])


def test_saving_rolling_back_clipping_and_exporting_work_with_it(tmp_path: Path) -> None:
    values = {"score": 0.5}
    settings: dict[str, Any] = {"controller": Script(LIFE), "at": ["1", "3"], "evaluate": lambda: values["score"]}
    grower, resumed = (grower_with(adamw, 0.5, **(settings | {"controller": Script(LIFE)})) for _ in range(2))
    grow(grower, 4)
    grower.save(tmp_path / "growth.pt")
    resumed.load(tmp_path / "growth.pt")
    optimizer = resumed.grafted.optimizer
    assert optimizer is not None
    state = copy.deepcopy(optimizer.state_dict())
    values["score"] = math.nan
    assert grow(resumed, 1)[0].rolled_back is not None
    assert_same(optimizer.state_dict(), state)
    values["score"] = 0.5
    resumed.load(tmp_path / "growth.pt")
    for each in (grower, resumed):
        torch.manual_seed(1)
        grow(each, 3)
    assert_same(*(list(each.grafted.parameters()) for each in (grower, resumed)))
    assert len(resumed.grafted.clip_gradients(1.0)) == 3
    x, _ = make_data()
    torch.testing.assert_close(resumed.export()(x), resumed.model(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, True, "half"])
def test_what_is_no_factor_is_refused_by_name_and_changes_nothing(scale: Any) -> None:
    model = make_mlp()
    with pytest.raises(InputError, match="seed_lr_scale must be a finite number above 0; got"):
        make_grower(model=model, seed_lr_scale=scale)
    assert not any(module._forward_hooks for module in model.modules())
