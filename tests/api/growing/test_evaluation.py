"""Training and eval mode: `evaluate` finds the model in eval mode, and the loop finds it as it was."""

import math
import socket
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import esper
from esper.kasmina import take_snapshot
from esper.leyline import InputError
from tests.api.growing.builders import (
    LIFE,
    Script,
    accuracy,
    assert_same,
    germinate,
    grow,
    make_grower,
    make_mlp,
    train,
)


def make_moody() -> nn.Sequential:
    """A model whose modes matter, with a part that its owner froze in eval mode."""
    return nn.Sequential(
        nn.Linear(6, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.BatchNorm1d(8).eval(), nn.Linear(8, 3)
    )


def make_moody_grower(evaluate: Callable[..., Any], **overrides: Any) -> esper.Grower:
    return make_grower(model=make_moody(), at=["1"], evaluate=evaluate, controller=Script(LIFE), **overrides)


def modes_of(grower: esper.Grower) -> dict[str, bool]:
    return {name: module.training for name, module in grower.grafted.named_modules()}


def step(grower: esper.Grower) -> None:
    """An epoch of training with the fifth layer frozen, and the grower's step."""
    optimizer = grower.grafted.optimizer
    assert optimizer is not None
    grower.model.train()
    grower.grafted.host.get_submodule("4").eval()
    optimizer.zero_grad()
    grower.model(torch.randn(8, 6)).square().sum().backward()
    optimizer.step()
    grower.step()


def test_everything_is_in_eval_mode_whenever_evaluate_is_called() -> None:
    seen: list[bool] = []

    def evaluate(model: nn.Module) -> float:
        seen.extend(module.training for part in (model, *slots) for module in part.modules())
        model.train()  # as many loops end their evaluation
        return 0.5

    slots: list[nn.Module] = []  # empty until there is a grower
    grower = make_moody_grower(evaluate)
    slots.append(grower.grafted.slots)
    for _ in range(6):  # from the fourth on, evaluate is asked a second time, without the seed
        step(grower)
    assert seen
    assert not any(seen)


def test_evaluation_leaves_running_statistics_alone() -> None:
    grower = make_moody_grower(accuracy)
    train(grower)
    before = {name: buffer.clone() for name, buffer in grower.grafted.host.named_buffers()}
    grower.step()
    assert_same(dict(grower.grafted.host.named_buffers()), before)


@pytest.mark.parametrize("ending", ["as it is", "eval", "train", "error"])
def test_every_module_is_afterwards_in_the_mode_it_was_in(ending: str) -> None:
    calls = []

    def evaluate(model: nn.Module) -> float:
        calls.append(ending)
        if len(calls) > 1 and ending == "error":
            raise ZeroDivisionError
        if ending in ("eval", "train"):
            model.train(ending == "train")
        return 0.5

    grower = make_moody_grower(evaluate)
    modes = modes_of(grower)
    assert (modes["host.2"], modes["host.4"]) == (True, False)
    if ending == "error":
        with pytest.raises(ZeroDivisionError):
            step(grower)
        assert modes_of(grower) == modes
        return
    for _ in range(6):
        step(grower)
        assert modes.items() <= modes_of(grower).items()
        assert all(module.training for module in grower.grafted.slots.modules())


class Merging(nn.Linear):
    """Merges an adapter into its weight for evaluation and takes it out for training, as adapters do."""

    merged = False

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.merged == mode:
            self.weight.data += -1 if mode else 1
            self.merged = not mode
        return self


def test_a_module_that_does_more_than_set_a_flag_is_told_of_both_changes() -> None:
    layer = Merging(6, 8)
    grower = make_grower(model=nn.Sequential(layer, nn.Tanh(), nn.Linear(8, 3)), at=["1"])
    train(grower)
    before = layer.weight.detach().clone()
    grower.step()
    torch.testing.assert_close(layer.weight.detach(), before, rtol=0, atol=1e-6)


def test_a_wrapper_is_switched_and_restored_too() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    seen: list[bool] = []

    def evaluate(model: nn.Module) -> float:
        seen.append(model.training)
        model.eval()
        return accuracy(model)

    try:
        wrapper = DistributedDataParallel(make_mlp())
        grower = make_grower(model=wrapper, evaluate=evaluate)
        grow(grower, 2)
        assert seen == [False] * 3
        assert all(module.training for module in wrapper.modules())
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("value", [0.5, 1, True, torch.tensor(0.5), torch.tensor([0.5]), np.float32(0.5), np.ones(())])
def test_anything_that_is_one_number_is_a_score(value: Any) -> None:
    assert grow(make_grower(evaluate=lambda: value), 1)[0].score == float(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0.5", "evaluate returned '0.5'; it must be one number"),
        (None, "evaluate returned None; it must be one number"),
        (torch.ones(3), r"evaluate returned a tensor of shape \[3\]"),
        ({"accuracy": 0.5}, "it must be one number"),
        (87.5, r"evaluate returned 87.5; a score is between 0 and 1 \(divide percent by 100\)"),
        (-0.5, "a score is between 0 and 1"),
        (math.nan, "evaluate returned nan before any growth"),
    ],
)
def test_what_is_no_score_is_refused_at_once(value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_grower(evaluate=lambda: value)


def test_a_score_that_turns_into_nonsense_later_is_refused_and_changes_nothing() -> None:
    values: list[Any] = [0.5, 0.5, "high"]
    grower = make_grower(controller=Script([germinate(0)]), evaluate=lambda: values.pop(0))
    grow(grower, 1)
    train(grower)
    before = take_snapshot(grower.grafted)
    with pytest.raises(InputError, match="'high'"):
        grower.step()
    assert_same(take_snapshot(grower.grafted).tensors, before.tensors)
