"""Watching an optimiser: gradients of seeds are measured now and then, and never pile up."""

import copy
import warnings

import pytest
import torch
from torch import nn

from esper.api.growing.watch import OptimizerWatch
from esper.kasmina import GraftedModel, graft
from esper.leyline import InputError
from tests.api.growing.builders import (
    LIFE,
    Script,
    grow,
    make_data,
    make_grower,
    make_mlp,
    train,
)

X = torch.randn(4, 6)


def watched_model() -> tuple[GraftedModel, torch.optim.Optimizer, OptimizerWatch]:
    host = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(host.parameters(), lr=0.0)
    model = graft(host, at=["1"], example=X, optimizer=optimizer, seed_groups="joined")
    watch = OptimizerWatch(optimizer, model)
    model.germinate("1", "far_wide", "instant")
    return model, optimizer, watch


def seed_norm(model: GraftedModel) -> float:
    return float(torch.cat([p.grad.flatten() for p in model.slots.parameters() if p.grad is not None]).norm())


def test_the_mean_gradient_is_that_of_steps_all_over_the_epoch() -> None:
    model, optimizer, watch = watched_model()
    norms = []
    for step in range(1, 33):
        optimizer.zero_grad()
        (step * model(X).sum()).backward()
        norms.append(seed_norm(model))
        optimizer.step()
    mean = float(watch.read().seed_gradients)
    assert mean == pytest.approx((norms[0] + norms[16]) / 2, rel=1e-5)
    assert norms[16] == pytest.approx(17 * norms[0], rel=1e-4)


def test_gradients_of_seeds_are_dropped_in_every_step() -> None:
    model, optimizer, _ = watched_model()
    for _ in range(3):
        model.host.zero_grad()
        model(X).sum().backward()
        optimizer.step()
        assert all(parameter.grad is None for parameter in model.slots.parameters())


def test_a_seed_that_is_left_out_of_some_steps_has_learned_all_the_same() -> None:
    model, optimizer, watch = watched_model()
    for step in range(8):
        optimizer.zero_grad()
        (model(X) if step == 5 else model.host.get_submodule("2")(torch.zeros(1, 8))).sum().backward()
        optimizer.step()
    watch.check()
    assert float(watch.read().seed_gradients) > 0


def test_a_step_without_training_is_refused() -> None:
    grower = make_grower()
    grow(grower, 1)
    with pytest.raises(InputError, match="the optimizer has not stepped since the last"):
        grower.step()


def test_forgetting_to_step_is_said() -> None:
    grower = make_grower()
    grow(grower, 1)
    train(grower, steps=6)
    with pytest.warns(UserWarning, match="7 optimiser steps since grower.step.. was called"):
        train(grower, steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(grower, steps=3)


def test_training_something_else_than_the_grown_model_is_refused() -> None:
    grower = make_grower(controller=Script(LIFE))
    grow(grower, 1)
    optimizer = grower.grafted.optimizer
    assert optimizer is not None
    bare = copy.deepcopy(grower.grafted.host)
    nn.functional.cross_entropy(bare(make_data()[0]), make_data()[1]).backward()
    optimizer.step()
    with pytest.raises(InputError, match="the seed behind '1' got no gradient in 1 optimiser steps"):
        grower.step()


def test_gradients_of_seeds_do_not_pile_up_when_only_the_known_model_is_cleared() -> None:
    model = make_mlp()
    grower = make_grower(model=model, controller=Script(LIFE))
    optimizer = grower.grafted.optimizer
    assert optimizer is not None
    grow(grower, 1)
    x, y = make_data()
    norms = []
    for _ in range(3):
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        norms.append(float(grower.grafted.seed_gradient_norms()[0, 0]))
        optimizer.param_groups[0]["lr"] = 0.0
        optimizer.step()
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    assert norms[2] == pytest.approx(norms[0], rel=1e-4)
