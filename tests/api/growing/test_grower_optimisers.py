"""The optimiser and its schedulers while a model grows: nothing that worked before stops working."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

import esper
from tests.api.growing.builders import (
    LIFE,
    Script,
    assert_same,
    cull,
    germinate,
    grow,
    make_data,
    make_grower,
    make_mlp,
    train,
)

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, initial_accumulator_value=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1e-1),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "asgd": lambda p: torch.optim.ASGD(p, lr=1e-2),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
}


def two_groups(model: nn.Sequential) -> list[dict[str, Any]]:
    return [
        {"params": [*model[0].parameters()], "lr": 1e-3},
        {"params": [*model[2].parameters(), *model[4].parameters()], "lr": 1e-2, "weight_decay": 0.1},
    ]


def optimizer_of(grower: esper.Grower) -> Optimizer:
    assert grower.grafted.optimizer is not None
    return grower.grafted.optimizer


def owned(grower: esper.Grower) -> list[list[int]]:
    return [[id(parameter) for parameter in group["params"]] for group in optimizer_of(grower).param_groups]


@pytest.mark.parametrize("seed_lr_scale", [1.0, 0.5])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimiser_follows_growth_culling_and_rollback(name: str, seed_lr_scale: float) -> None:
    model = make_mlp()
    optimizer = OPTIMIZERS[name](model.parameters())
    good = {"value": True}
    grower = make_grower(
        model=model,
        optimizer=optimizer,
        controller=Script([*LIFE[:6], cull(0)]),
        evaluate=lambda: 0.5 if good["value"] else float("nan"),
        seed_lr_scale=seed_lr_scale,
    )
    alone = owned(grower)
    train(grower)
    before = copy.deepcopy([optimizer.state[p] for p in model.parameters()])
    grower.step()
    assert_same([optimizer.state[p] for p in model.parameters()], before)
    assert sum(map(len, owned(grower))) == len(list(grower.grafted.parameters()))
    grow(grower, 4)
    start = [p.detach().clone() for p in grower.grafted.slots.parameters()]
    state = copy.deepcopy(optimizer.state_dict())
    train(grower)
    moved = zip(grower.grafted.slots.parameters(), start, strict=True)
    assert all(not torch.equal(now, then) for now, then in moved)
    good["value"] = False
    assert grower.step().rolled_back is not None
    assert_same(optimizer.state_dict(), state)
    good["value"] = True
    grow(grower, 2)
    assert owned(grower) == alone
    assert {id(p) for p in optimizer.state} == {id(p) for p in model.parameters()}


def test_seeds_join_the_group_of_their_neighbour() -> None:
    model = make_mlp()
    optimizer = torch.optim.AdamW(two_groups(model))
    grower = make_grower(
        model=model,
        optimizer=optimizer,
        at=["0", "3"],
        controller=Script([germinate(0, 2), germinate(1, 3)]),
    )
    grow(grower, 2)
    # A Tanh has no parameters: its seed joins those of the layer before it.
    for slot, group in zip(grower.grafted.slots, optimizer.param_groups, strict=True):
        assert {id(parameter) for parameter in slot.parameters()} < {id(parameter) for parameter in group["params"]}


class Normed(nn.Sequential):
    """Biases and scales come before, after and between weights."""

    def __init__(self) -> None:
        super().__init__(
            nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh()
        )


def group_of_seed(model: nn.Sequential, optimizer: Optimizer, path: str) -> int:
    """The group that a seed behind `path` joined with all its parameters."""
    grower = make_grower(model=model, optimizer=optimizer, at=[path], evaluate=lambda: 0.5, controller=Script(LIFE))
    grow(grower, 1)
    seed = {id(parameter) for parameter in grower.grafted.slots.parameters()}
    joined = [index for index, ids in enumerate(owned(grower)) if seed & set(ids)]
    assert len(joined) == 1
    assert seed <= set(owned(grower)[joined[0]])
    return joined[0]


@pytest.mark.parametrize("path", ["0", "0.1", "1", "2", "4"])
@pytest.mark.parametrize("decay_group", [0, 1])
def test_seeds_join_the_group_of_weights_where_biases_are_in_another(path: str, decay_group: int) -> None:
    model = Normed()
    weights = {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1}
    others = {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0}
    groups = [weights, others] if decay_group == 0 else [others, weights]
    assert group_of_seed(model, torch.optim.AdamW(groups), path) == decay_group


def test_a_seed_behind_a_normalisation_joins_its_group() -> None:
    model = Normed()
    groups = [{"params": [*model[2].parameters()]}, {"params": [*model[3].parameters()]}]
    assert group_of_seed(model, torch.optim.AdamW(groups), "3") == 1


def test_a_seed_before_everything_that_is_trained_joins_what_comes_after_it_in_its_own_model() -> None:
    model, other = make_mlp(), make_mlp()
    groups = [{"params": [*other.parameters()], "lr": 1e-5}, {"params": [*model[4].parameters()], "lr": 1e-2}]
    assert group_of_seed(model, torch.optim.AdamW(groups), "1") == 1


@pytest.mark.parametrize("frozen", ["not in the optimiser", "without gradients", "both"])
def test_a_seed_behind_layers_that_are_not_trained_learns(frozen: str) -> None:
    model = make_mlp()
    model[0].requires_grad_(frozen == "not in the optimiser")
    owner = model if frozen == "without gradients" else model[2:]
    grower = make_grower(model=model, optimizer=torch.optim.AdamW(owner.parameters(), lr=1e-2), controller=Script(LIFE))
    layer = [parameter.detach().clone() for parameter in model[0].parameters()]
    grow(grower, 1)
    start = [parameter.detach().clone() for parameter in grower.grafted.slots.parameters()]
    grow(grower, 3)
    pairs = zip(grower.grafted.slots.parameters(), start, strict=True)
    assert all(not torch.equal(now, then) for now, then in pairs)
    assert_same(list(model[0].parameters()), layer)


def test_named_parameters_stay_named() -> None:
    model = make_mlp()
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=1e-2)
    grower = make_grower(model=model, optimizer=optimizer, controller=Script([*LIFE[:6], cull(0)]))
    names = list(optimizer.param_groups[0]["param_names"])
    grow(grower, 1)
    assert len(optimizer.param_groups[0]["param_names"]) == len(optimizer.param_groups[0]["params"]) > len(names)
    grow(grower, 6)
    assert optimizer.param_groups[0]["param_names"] == names


SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, [lambda e: 0.9**e, lambda e: 0.8**e]),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.9),
    "step": lambda o: lr_scheduler.StepLR(o, 3),
    "multistep": lambda o: lr_scheduler.MultiStepLR(o, [2, 5]),
    "constant": lambda o: lr_scheduler.ConstantLR(o, total_iters=4),
    "linear": lambda o: lr_scheduler.LinearLR(o, total_iters=4),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 12),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 12),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, [1e-4, 1e-3], [1e-3, 1e-2], 3, cycle_momentum=False),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, [1e-3, 1e-2], total_steps=20),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=3), lr_scheduler.CosineAnnealingLR(o, 10)], [3]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1, min_lr=[1e-6, 1e-5]),
}


def advance(scheduler: Any) -> None:
    scheduler.step(1.0) if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else scheduler.step()


@pytest.mark.parametrize("seed_lr_scale", [1.0, 0.5])
@pytest.mark.parametrize("made_after_epochs", [0, 3])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_sets_the_rates_that_it_sets_without_growth(
    name: str, made_after_epochs: int, seed_lr_scale: float
) -> None:
    def rates(script: list[Any]) -> list[list[float]]:
        model = make_mlp()
        optimizer = torch.optim.AdamW(two_groups(model))
        settings = {"controller": Script(script), "seed_lr_scale": seed_lr_scale}
        grower = make_grower(model=model, optimizer=optimizer, **settings)
        grow(grower, made_after_epochs)
        scheduler = SCHEDULERS[name](optimizer)
        seen = []
        for _ in range(9):
            train(grower)
            advance(scheduler)
            grower.step()
            seen.append([group["lr"] for group in optimizer.param_groups])
        return seen

    assert rates([*LIFE[:6], cull(0)]) == rates([])


def test_a_scheduler_that_was_given_is_rolled_back_with_the_optimiser() -> None:
    values = iter([0.5, 0.5, float("nan"), 0.5])
    model = make_mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = lr_scheduler.MultiStepLR(optimizer, [2], gamma=0.1)
    grower = make_grower(
        model=model, optimizer=optimizer, schedulers=[scheduler], evaluate=lambda: next(values), controller="never"
    )
    rates = []
    for _ in range(3):
        optimizer.zero_grad()
        (1e-6 * grower.model(make_data()[0]).sum()).backward()
        optimizer.step()
        scheduler.step()
        grower.step()
        rates.append(optimizer.param_groups[0]["lr"])
    # The drop at the second epoch was undone with that epoch, and came again.
    assert rates == pytest.approx([1.0, 1.0, 0.1])
