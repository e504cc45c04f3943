"""Networks that grow on another device than the CPU, and leave random numbers there alone."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import GraftedModel, emit_source, fold, graft
from esper.kasmina.keeping import random_state
from esper.leyline import Stage
from tests.kasmina.builders import make_batch, make_grafted, make_mlp
from tests.second_device import SECOND


def grafted_there(model: nn.Module | None = None, **settings: Any) -> GraftedModel:
    return make_grafted(model=(model or make_mlp()).to(SECOND), example=make_batch()[0].to(SECOND), **settings)


def batch_there() -> tuple[Tensor, Tensor]:
    x, y = make_batch()
    return x.to(SECOND), y.to(SECOND)


@pytest.mark.parametrize("germinated", [False, True])
@pytest.mark.usefixtures("second_device")
def test_gradients_are_clipped_while_a_slot_is_empty(germinated: bool) -> None:
    model = grafted_there()
    x, y = batch_there()
    nn.functional.cross_entropy(model(x), y).backward()
    if germinated:
        model.germinate("1", "mlp")  # a seed before its first gradient
    norms = model.clip_gradients(1e-3)
    assert norms.device == SECOND
    assert norms.cpu()[0] > 1e-3
    assert norms.cpu()[1:].tolist() == [0.0, 0.0]
    assert model.clip_gradients(1.0).cpu()[0] == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.usefixtures("second_device")
def test_alpha_is_where_its_submodule_is() -> None:
    assert {buffer.device for buffer in grafted_there().slots.buffers()} == {SECOND}


@pytest.mark.usefixtures("second_device")
def test_a_seed_learns_from_shadow_passes_on_another_device() -> None:
    model = grafted_there(isolation="shadow")
    model.germinate("1", "mlp")
    model.begin_epoch()
    x, y = batch_there()
    nn.functional.cross_entropy(model.shadow("1", x), y).backward()
    assert model.slot("1").stage is Stage.TRAINING
    assert model.seed_gradient_norms()[0, 0] > 0
    assert all(parameter.grad is None for parameter in model.host.parameters())


@pytest.mark.usefixtures("second_device")
def test_emitted_code_grows_a_model_on_another_device() -> None:
    model = graft(make_mlp(), ["1"], make_batch()[0])
    model.plant_fossils({"1": "mlp"})
    folded = fold(model, make_batch()[0])
    names: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(emit_source(folded, "weights.pt"), "emitted", "exec", dont_inherit=True), names)
    rebuilt = names["grow"](make_mlp().to(SECOND))
    rebuilt.load_state_dict(folded.network.state_dict())
    x = make_batch()[0]
    assert torch.allclose(rebuilt(x.to(SECOND)).cpu(), folded.network(x))


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn(1, device=x.device)


@pytest.mark.usefixtures("drawing")
def test_looking_at_a_model_takes_no_random_number_from_it() -> None:
    model = nn.Sequential(*make_mlp(), Noise())
    before = random_state(model.to(SECOND))
    grown = grafted_there(model, isolation="shadow")
    grown.germinate("1", "mlp")
    grown.shadow("1", batch_there()[0])
    assert grown.host is model
    fold(grown, batch_there()[0])
    after = random_state(model)
    assert all(torch.equal(state, after[device]) for device, state in before.items())


def test_germinating_leaves_the_generators_of_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(seed: int) -> None:
        raise AssertionError("a generator of a device was seeded")

    model = make_grafted()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", refuse)
    model.germinate("1", "mlp")
