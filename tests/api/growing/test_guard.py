"""What counts as a failed epoch, and what does not."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import esper
from esper.kasmina import take_snapshot
from tests.api.growing.builders import Script, accuracy, assert_same, germinate, grow, make_data, make_grower, train


def test_a_training_loss_is_not_held_against_validation_losses() -> None:
    """Train on the squared error of prices in cents, validate by the absolute error in euros."""
    x = torch.randn(64, 6)
    y = 300 * x[:, :1] + 50
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def evaluate(network: nn.Module) -> Tensor:
        with torch.no_grad():
            return F.l1_loss(network(x), y) / 100

    grower = make_grower(model=model, optimizer=optimizer, at=["1"], evaluate=evaluate, measure="loss")
    for _ in range(6):
        optimizer.zero_grad()
        loss = F.mse_loss(grower.model(x), y)
        loss.backward()
        optimizer.step()
        assert grower.step(loss=loss.detach()).rolled_back is None


def step_with(grower: esper.Grower, loss: float | None = None) -> str | None:
    train(grower)
    return grower.step(loss=loss).rolled_back


def test_each_loss_is_held_against_earlier_ones_of_its_kind() -> None:
    validation = {"loss": 2.0}
    grower = make_grower(evaluate=lambda: validation["loss"], measure="loss")
    assert [step_with(grower, 200.0), step_with(grower, 180.0)] == [None, None]
    assert step_with(grower, 700.0) == "training loss 700 exceeds 570"
    validation["loss"] = 7.0
    assert step_with(grower, 180.0) == "validation loss 7 exceeds 6"
    validation["loss"] = 1.5
    assert step_with(grower, 180.0) is None


def test_an_epoch_that_was_undone_is_no_standard_for_later_ones() -> None:
    validation = {"loss": 2.0}
    grower = make_grower(evaluate=lambda: validation["loss"], measure="loss")
    step_with(grower, 1.0)
    validation["loss"] = 50.0
    assert step_with(grower, 2.9) == "validation loss 50 exceeds 6"
    validation["loss"] = 2.0
    assert step_with(grower, 3.5) == "training loss 3.5 exceeds 3"


def test_losses_that_have_been_below_zero_are_not_compared_by_ratios() -> None:
    grower = make_grower()
    for loss in (0.01, -0.2, 5.0):
        assert step_with(grower, loss) is None


class Masked(nn.Module):
    """Running statistics, and an attention mask: a buffer that is meant to hold -inf."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.head = nn.Linear(8, 3)
        self.register_buffer("mask", torch.tensor([0.0, 0.0, -math.inf]))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.inner(x))
        return result


def spoil(grower: esper.Grower) -> None:
    """A batch with a NaN, as data has them; the loop leaves out the step, as careful loops do."""
    grower.model.train()
    x, y = make_data()
    x[3, 2] = math.nan
    assert not F.cross_entropy(grower.model(x), y).isfinite()


def test_running_statistics_that_a_bad_batch_has_spoiled_are_restored() -> None:
    grower = make_grower(model=Masked(), at=["inner"], evaluate=accuracy)
    grow(grower, 2)
    good = take_snapshot(grower.grafted)
    train(grower)
    spoil(grower)
    decision = grower.step()
    assert decision.rolled_back == "the buffer inner.1.running_mean holds values that are not finite"
    assert_same(take_snapshot(grower.grafted).tensors, good.tensors)
    assert grow(grower, 1)[0].rolled_back is None
    assert grower.export().eval()(make_data()[0]).isfinite().all()


def test_spoiled_buffers_of_seeds_are_noticed() -> None:
    grower = make_grower(controller=Script([germinate(0)]))
    grow(grower, 1)
    seed = grower.grafted.get_submodule("slots.0.seed")
    seed.register_buffer("mask", torch.tensor([-math.inf]))
    seed.register_buffer("mean", torch.zeros(2))
    assert grow(grower, 1)[0].rolled_back is None
    seed.get_buffer("mean")[0] = math.nan
    assert grow(grower, 1)[0].rolled_back == "the buffer slots.0.seed.mean holds values that are not finite"
    assert seed.get_buffer("mean").tolist() == [0.0, 0.0]


def test_spoiled_buffers_are_noticed_after_going_on_from_a_save() -> None:
    model = Masked()
    settings: dict[str, Any] = {"at": ["inner"], "controller": Script([]), "evaluate": accuracy}
    grower = make_grower(model=copy.deepcopy(model), **settings)
    grow(grower, 1)
    train(grower)
    spoil(grower)
    resumed = make_grower(model=model, **settings)
    resumed.load_state_dict(grower.state_dict())
    rolled_back = resumed.step().rolled_back
    assert rolled_back is not None
    assert "running_mean" in rolled_back


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.float8_e5m2])
def test_numbers_of_every_kind_are_looked_at(dtype: torch.dtype) -> None:
    model = Masked()
    model.register_buffer("cache", torch.zeros(3).to(dtype))
    model.register_buffer("empty", torch.zeros(0))
    model.register_buffer("count", torch.zeros(2, dtype=torch.int64))
    grower = make_grower(model=model, at=["inner"])
    assert grow(grower, 1)[0].rolled_back is None
    model.get_buffer("cache").copy_(torch.full((3,), math.nan).to(dtype))
    assert grow(grower, 1)[0].rolled_back == "the buffer cache holds values that are not finite"
