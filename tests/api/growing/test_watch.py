"""Watching an optimiser: gradients of seeds are measured now and then, and never pile up."""

import pytest
import torch
from torch import nn

from esper.api.growing.watch import OptimizerWatch
from esper.kasmina import GraftedModel, graft

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
