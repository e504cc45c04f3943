"""Growing a model that is on another device than the CPU: the same life as on the CPU, and no devices mixed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.leyline import Stage
from tests.api.growing.builders import LIFE, WAIT, Script, germinate, make_data, make_grower, make_mlp
from tests.second_device import SECOND, SecondDevice

THERE = str(SECOND)


class Loop:
    """A grower of an MLP on a device, and what its owner would write around it."""

    def __init__(
        self,
        device: str,
        actions: list[Any],
        kind: type[torch.optim.Optimizer] = torch.optim.AdamW,
        example: Any = None,
    ) -> None:
        self.device = device
        torch.manual_seed(0)
        model = make_mlp().to(device)
        self.optimizer = kind(model.parameters(), lr=1e-2)  # type: ignore[call-arg]
        self.grower = make_grower(
            model=model,
            optimizer=self.optimizer,
            example=self.data()[0] if example is None else example,
            evaluate=self.score,
            controller=Script(actions),
        )

    def data(self, seed: int = 0) -> tuple[Tensor, Tensor]:
        x, y = make_data(seed)
        return x.to(self.device), y.to(self.device)

    def score(self, model: nn.Module) -> Tensor:
        """On the device, and moved by no seed by as much as a point."""
        with torch.no_grad():
            outputs: Tensor = model(self.data(1)[0])
        return 0.5 + 1e-3 * outputs.tanh().mean()

    def train(self) -> Tensor:
        x, y = self.data()
        loss = torch.zeros(())
        for _ in range(2):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.grower.model(x), y)
            loss.backward()
            self.grower.grafted.clip_gradients(1.0)
            self.optimizer.step()
        return loss

    def grow(self, epochs: int) -> list[str]:
        return [str(self.grower.step(self.train().detach())) for _ in range(epochs)]

    def weights(self) -> list[Tensor]:
        return [parameter.detach().cpu() for parameter in self.grower.grafted.parameters()]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.usefixtures("second_device")
def test_a_model_lives_the_same_life_on_another_device(kind: type[torch.optim.Optimizer]) -> None:
    """Germinated, trained, blended in and kept, with a second slot that stays empty."""
    there, here = (Loop(device, LIFE, kind) for device in (THERE, "cpu"))
    assert there.grow(8) == here.grow(8)
    assert there.grower.grafted.slot("1").stage is Stage.FOSSILIZED
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(there.weights(), here.weights(), strict=True))
    tensors = [*there.grower.grafted.parameters(), *there.grower.grafted.buffers()]
    assert {tensor.device for tensor in tensors} == {SECOND}


@pytest.mark.parametrize(("saved_on", "loaded_on"), [(THERE, "cpu"), ("cpu", THERE)])
@pytest.mark.usefixtures("second_device")
def test_a_growth_goes_on_on_another_device(tmp_path: Path, saved_on: str, loaded_on: str) -> None:
    first, then = Loop(saved_on, LIFE), Loop(loaded_on, LIFE)
    first.grow(4)
    first.train()  # in the middle of an epoch
    first.grower.save(tmp_path / "growth")
    then.grower.load(tmp_path / "growth")
    assert {str(parameter.device) for parameter in then.grower.grafted.parameters()} == {loaded_on}
    assert then.grow(4) == first.grow(4)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(then.weights(), first.weights(), strict=True))


@pytest.mark.usefixtures("second_device")
def test_a_failed_epoch_is_undone_on_another_device() -> None:
    loop = Loop(THERE, [germinate(0), *[WAIT] * 9])
    loop.grow(4)
    good = loop.weights()
    loop.train()
    with torch.no_grad():
        next(loop.grower.grafted.parameters()).fill_(torch.nan)
    assert loop.grower.step().rolled_back is not None
    assert all(torch.equal(a, b) for a, b in zip(good, loop.weights(), strict=True))
    assert len(loop.grow(1)) == 1


@pytest.mark.usefixtures("second_device")
def test_what_was_grown_is_exported_from_another_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(THERE, LIFE)
    loop.grow(7)
    saved: dict[str, Tensor] = {}
    monkeypatch.setattr(torch, "save", lambda state, _: saved.update(state))
    network = loop.grower.export(tmp_path / "net.py")
    assert {parameter.device for parameter in network.parameters()} == {SECOND}
    x, _ = loop.data(2)
    assert torch.equal(network(x), loop.grower.model(x))
    assert saved.keys() == network.state_dict().keys()
    assert {tensor.device.type for tensor in saved.values()} == {"cpu"}  # so that they load where no such device is


@pytest.mark.usefixtures("second_device")
def test_an_example_on_the_cpu_will_do_for_a_model_that_a_trainer_has_moved() -> None:
    loop = Loop(THERE, LIFE, example={"input": make_data()[0]})
    loop.grow(7)
    loop.grower.grafted.to("cpu")  # as some trainers do in the end
    assert {parameter.device.type for parameter in loop.grower.export().parameters()} == {"cpu"}


def test_training_a_seed_reads_nothing_from_the_device(second_device: SecondDevice) -> None:
    loop = Loop(THERE, [germinate(0), *[WAIT] * 9])
    loop.grow(3)
    before = second_device.reads
    loop.train()
    assert second_device.reads == before
    assert "nan" not in str(loop.grower.step())


def test_with_and_without_a_seed_is_measured_on_the_same_random_numbers_of_the_device(
    second_device: SecondDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: SECOND)
    monkeypatch.setattr(torch, "get_device_module", lambda _: second_device)
    drawn: list[float] = []

    def evaluate() -> float:
        drawn.append(float(torch.rand(1, device=SECOND)))
        return 0.5

    model = make_mlp().to(SECOND)
    x, y = (part.to(SECOND) for part in make_data())
    grower = make_grower(model=model, example=x, evaluate=evaluate, controller=Script([germinate(0), *[WAIT] * 9]))
    optimizer = grower.grafted.optimizer
    assert optimizer is not None
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(grower.model(x), y).backward()
        optimizer.step()
        drawn.clear()
        grower.step()
    assert len(drawn) == 3  # with the seed, without it, and with more of it
    assert len(set(drawn)) == 1
    assert float(torch.rand(1, device=SECOND)) not in drawn  # and the loop's own numbers went on
