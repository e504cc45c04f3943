"""The controller that comes with the package: small, whole, and taken like any other."""

from pathlib import Path

import torch
from torch import nn

import esper
from esper.api import find_controller
from esper.api.shipping import about_shipped, passed_on, shipped_controller
from esper.kasmina import Family
from esper.tamiyo import run_episode
from esper.tasks import HELD_OUT_TASKS
from tests.worlds import tiny_task


def test_the_shipped_controller_is_small_and_was_not_trained_on_held_out_tasks() -> None:
    file = Path(esper.__file__).parent / "api" / "shipped.safetensors"
    assert file.stat().st_size < 1_000_000
    assert not set(about_shipped()["tasks"].split(", ")) & set(HELD_OUT_TASKS)


def test_it_is_found_by_its_name_and_decides() -> None:
    found = find_controller("shipped")
    assert run_episode(tiny_task(), found, seed=1) == run_episode(tiny_task(), shipped_controller(), seed=1)


def test_it_grows_a_model_of_ones_own() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    grower = esper.Grower(
        model, example=torch.randn(4, 6), optimizer=optimizer, evaluate=lambda: 0.5, controller="shipped", epochs=8
    )
    for _ in range(8):
        grower.model(torch.randn(4, 6)).sum().backward()
        optimizer.step()
        grower.step()
    assert len(grower.history) == 8


def test_what_hosts_pass_on_is_told() -> None:
    # The head of a convolutional network passes on features.
    assert passed_on(["mnist1d"]) == {Family.CONV1D.value, Family.FEATURES.value}
    assert passed_on(["synthetic-images"]) == {Family.CONV2D.value, Family.FEATURES.value}
    assert passed_on(["digits"]) == {Family.FEATURES.value}
