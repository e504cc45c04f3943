"""Every operation of native hosts, forward and backward, beside what torch makes of the same module."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.taps import fit_positions
from esper.tolaria.executors import native_kernels
from esper.tolaria.executors.native_program import Builder, Value, record

BATCH = 5


class Calls(nn.Module):
    """A function with parameters: `call(x, *parameters)`."""

    def __init__(self, call: Callable[..., Tensor], *parameters: Tensor) -> None:
        super().__init__()
        self._call = call
        self.own = nn.ParameterList(parameters)

    def forward(self, x: Tensor) -> Tensor:
        return self._call(x, *self.own)


def gate(x: Tensor) -> Tensor:
    value, opening = x.chunk(2, -1)
    return value * F.silu(opening)


MODULES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(6, 4), (6,)),
    "linear without a bias": (nn.Linear(6, 4, bias=False), (6,)),
    "linear along positions": (nn.Linear(7, 3), (2, 7)),
    "convolution": (nn.Conv1d(3, 4, 5, padding=2), (3, 9)),
    "convolution with a stride": (nn.Conv1d(2, 3, 3, stride=2, padding=1, bias=False), (2, 10)),
    "convolution of wide stride without padding": (nn.Conv1d(2, 3, 2, stride=3), (2, 11)),
    "pointwise convolution": (nn.Conv1d(3, 5, 1), (3, 6)),
    "depthwise convolution": (nn.Conv1d(3, 3, 5, padding=2, groups=3, bias=False), (3, 6)),
    "layer norm": (nn.LayerNorm(6), (6,)),
    "group norm": (nn.GroupNorm(1, 3), (3, 5)),
    "relu": (nn.Sequential(nn.Linear(4, 8), nn.ReLU()), (4,)),
    "silu": (nn.Sequential(nn.Linear(4, 8), nn.SiLU()), (4,)),
    "gate": (Calls(gate), (8,)),
    "scale of features": (Calls(lambda x, scale: scale * x, torch.randn(4)), (4,)),
    "scale of channels": (Calls(lambda x, scale: scale * x, torch.randn(3, 1)), (3, 6)),
    "mean over positions": (Calls(lambda x: x.flatten(2).mean(2)), (3, 6)),
    "flat series": (nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), (2, 6)),
}


def run(build: Callable[[Builder], Value], x: Tensor, weights: Tensor, arriving: Tensor) -> tuple[Tensor, ...]:
    """What a program makes of `x`, and the gradients of input and parameters if `arriving` arrives at its result."""
    builder = Builder(tuple(x.shape[1:]), torch.float64)
    result = build(builder)
    program = builder.build()
    act, grad = np.zeros(program.rows * BATCH), np.zeros(program.rows * BATCH)
    slopes, spare = np.zeros(len(weights)), np.zeros(program.spare * BATCH + program.spare_fixed)
    act[: x[0].numel() * BATCH] = x.flatten(1).T.flatten().numpy()
    common: tuple[Any, ...] = (weights.numpy(), np.ones(1), program.consts, spare)
    losses, rights = np.zeros(1), np.zeros(1, np.int64)
    native_kernels.forward(program.table, act, grad, *common, np.zeros(BATCH, np.int64), BATCH, losses, rights, True)
    here = slice(result.row * BATCH, (result.row + result.rows) * BATCH)
    grad[here] = arriving.flatten(1).T.flatten().numpy()
    own, alphas, consts, spare = common
    native_kernels.backward(program.table, act, grad, own, slopes, alphas, consts, spare, BATCH)
    parts = (act[here], grad[: x[0].numel() * BATCH])
    made, back = (torch.from_numpy(part.copy()).view(-1, BATCH).T for part in parts)
    return made.reshape(arriving.shape), back.reshape(x.shape), torch.from_numpy(slopes)


@pytest.mark.parametrize("name", MODULES)
def test_an_operation_and_its_gradients_are_those_of_torch(name: str) -> None:
    module, shape = MODULES[name]
    module = module.double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, *shape, generator=generator, dtype=torch.float64, requires_grad=True)
    expected = module(x)
    arriving = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    parameters = list(module.parameters())
    slopes = torch.autograd.grad(expected, [x, *parameters], arriving)
    weights = torch.cat([torch.zeros(2, dtype=torch.float64), *(p.detach().flatten() for p in parameters)])
    made, back, own = run(
        lambda builder: builder.add(record(module, shape), builder.input, 2, learns=True, sends=True),
        x.detach(),
        weights,
        arriving,
    )
    torch.testing.assert_close(made, expected.detach(), rtol=0.0, atol=1e-10)
    torch.testing.assert_close(back, slopes[0], rtol=0.0, atol=1e-10)
    flat = torch.cat([torch.zeros(2, dtype=torch.float64), *(slope.flatten() for slope in slopes[1:])])
    torch.testing.assert_close(own, flat, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("positions", [3, 4, 11])
def test_positions_are_fitted_as_elsewhere(positions: int) -> None:
    x = torch.randn(BATCH, 2, 7, dtype=torch.float64, requires_grad=True)
    like = torch.zeros(BATCH, 2, positions, dtype=torch.float64)
    expected = fit_positions(x, like)
    arriving = torch.randn_like(expected)
    (slope,) = torch.autograd.grad(expected, x, arriving)

    made, back, _ = run(
        lambda builder: builder.fit(builder.input, Value(0, (2, positions))),
        x.detach(),
        torch.zeros(1, dtype=torch.float64),
        arriving,
    )
    torch.testing.assert_close(made, expected.detach())
    torch.testing.assert_close(back, slope)


def test_what_is_not_asked_for_gets_no_gradient() -> None:
    module = nn.Linear(3, 2).double()
    x, arriving = torch.randn(BATCH, 3, dtype=torch.float64), torch.randn(BATCH, 2, dtype=torch.float64)
    weights = torch.cat([p.detach().flatten() for p in module.parameters()])
    _, back, own = run(
        lambda builder: builder.add(record(module, (3,)), builder.input, 0, learns=False, sends=False),
        x,
        weights,
        arriving,
    )
    assert not back.any()
    assert not own.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_loss_is_that_of_torch_and_what_is_not_a_number_stays_so(bad: float) -> None:
    logits = 3 * torch.randn(BATCH, 4, dtype=torch.float64)
    labels = torch.tensor([0, 3, 1, 2, 2])
    builder = Builder((4,), torch.float64)
    builder.end(builder.input, 0)
    program = builder.build()

    def loss_of(given: Tensor) -> tuple[float, int, Tensor]:
        act, grad = given.T.flatten().numpy().copy(), np.zeros(4 * BATCH)
        losses, rights, none = np.zeros(1), np.zeros(1, np.int64), np.zeros(1)
        args = (none, none, none, np.zeros(3 * BATCH), labels.numpy(), BATCH, losses, rights, True)
        native_kernels.forward(program.table, act, grad, *args)
        return float(losses[0]), int(rights[0]), torch.from_numpy(grad).view(4, BATCH).T

    logits.requires_grad_()
    expected = F.cross_entropy(logits, labels)
    (slope,) = torch.autograd.grad(expected, logits)
    loss, right, grad = loss_of(logits.detach())
    assert loss / BATCH == pytest.approx(float(expected.detach()), abs=1e-10)
    assert right == int((logits.argmax(1) == labels).sum())
    torch.testing.assert_close(grad, slope)
    broken = logits.detach().clone()
    broken[1, 0] = bad
    assert not np.isfinite(loss_of(broken)[0])
