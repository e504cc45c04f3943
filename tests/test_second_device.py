"""The second device: it computes what the CPU does, and fails where CUDA would."""

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.second_device import SECOND, SecondDevice

Operation = Callable[[Tensor, Tensor], object]
"""Of a matrix `[3, 3]` on the CPU and one on the second device."""


def matrices() -> tuple[Tensor, Tensor]:
    return torch.eye(3), torch.eye(3).to(SECOND)


@pytest.mark.parametrize(
    "operation",
    [
        lambda here, there: here + there,
        lambda here, there: here.sum().add_(there[0, 0]),
        lambda here, there: there[0, 0] * here,
        lambda here, there: here @ there,
        lambda here, there: torch.stack([there[0, 0], torch.zeros(())]),
        lambda here, there: torch.cat([there, here]),
        lambda here, there: torch.where(here > 0, there, 0.0),
        lambda here, there: there.masked_fill(here > 0, 1.0),
        lambda here, there: there.gather(0, here.long()),
        lambda here, there: here[there[0].long()],
        lambda here, there: there.index_put_((torch.tensor([0]),), here[0]),
        lambda here, there: torch.equal(here, there),
        lambda here, there: nn.Linear(3, 3)(there),
        lambda here, there: nn.functional.cross_entropy(there, torch.zeros(3, dtype=torch.long)),
        lambda here, there: torch._foreach_mul([there], [here]),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_devices_do_not_mix(operation: Operation, inference: bool) -> None:
    with SecondDevice(), torch.inference_mode(inference):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            operation(*matrices())
        operation(torch.eye(3), torch.eye(3))  # it is the devices alone that are wrong


@pytest.mark.parametrize(
    "operation",
    [
        lambda here, there: there * here.sum(),
        lambda here, there: there[torch.tensor([0, 2])],
        lambda here, there: there[here[0] > 0],
        lambda here, there: there[0, [0, 2]],
        lambda here, there: there[[0, 2]],
        lambda here, there: there.copy_(here),
        lambda here, there: there + here.to(SECOND),
        lambda here, there: there.new_tensor([1.0, 2.0]),
        lambda here, there: torch.tensor([1.0, 2.0], device=SECOND),
        lambda here, there: torch.randn(2, device=SECOND),
        lambda here, there: torch.distributions.Categorical(logits=there).sample(),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_what_cuda_allows_is_allowed(operation: Operation, inference: bool) -> None:
    with SecondDevice(), torch.inference_mode(inference):
        result = operation(*matrices())
        assert isinstance(result, Tensor)
        assert result.device == SECOND


def test_a_slice_is_filled_from_the_cpu() -> None:
    with SecondDevice():
        here, there = matrices()
        there[:, 0] = here[1]
        there[torch.tensor([False, False, True])] = 5.0
        there[0, [1, 2]] = 7.0
        assert there.tolist() == [[0.0, 7.0, 7.0], [1.0, 1.0, 0.0], [5.0, 5.0, 5.0]]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.norm(self.lstm(x)[0]))
        return result


def learn(net: Net, device: torch.device, optimizer: type[torch.optim.AdamW], foreach: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 4, generator=generator).to(device)
    y = torch.randint(3, (10,), generator=generator).to(device)
    steps = optimizer(net.parameters(), lr=0.01, foreach=foreach)
    for _ in range(3):
        steps.zero_grad()
        nn.functional.cross_entropy(net(x).flatten(0, 1), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        steps.step()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("foreach", [True, False])
def test_a_network_learns_the_same_on_it(optimizer: type[torch.optim.AdamW], foreach: bool) -> None:
    here = Net()
    there = copy.deepcopy(here)
    parameters = list(there.parameters())
    with SecondDevice():
        there.to(SECOND)
        assert all(a is b for a, b in zip(parameters, there.parameters(), strict=True))
        learn(there, SECOND, optimizer, foreach)
        assert {parameter.device for parameter in there.parameters()} == {SECOND}
        learn(here, torch.device("cpu"), optimizer, foreach)
        for parameter, twin in zip(there.parameters(), here.parameters(), strict=True):
            torch.testing.assert_close(parameter.cpu(), twin)


def test_what_crosses_is_counted() -> None:
    with SecondDevice() as device:
        here, there = matrices()
        assert (device.writes, device.reads) == (1, 0)
        there[0] = here[0]
        assert (device.writes, device.reads) == (2, 0)
        _ = there.cpu(), there.sum().item(), there.tolist(), bool(there.any())
        here.copy_(there)
        assert (device.writes, device.reads) == (2, 5)
        _ = here.sum().item(), there.sum() + 1
        assert (device.writes, device.reads) == (2, 5)


def test_a_copy_on_the_cpu_is_a_copy() -> None:
    with SecondDevice():
        there = torch.zeros(2, device=SECOND)
        for inference in (False, True):
            with torch.inference_mode(inference):
                here = there.cpu()
            there.add_(1)
            assert here.tolist() != there.tolist()


def test_saved_tensors_load_onto_the_cpu() -> None:
    with SecondDevice():
        file = io.BytesIO()
        torch.save({"x": torch.arange(3, device=SECOND)}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["x"]
    assert loaded.device.type == "cpu"
    assert loaded.tolist() == [0, 1, 2]


def test_it_draws_from_a_generator_of_its_own() -> None:
    with SecondDevice() as device:
        start, outside = device.get_rng_state(), torch.get_rng_state()
        first = torch.randn(3, device=SECOND).tolist()
        assert torch.equal(torch.get_rng_state(), outside)
        torch.randn(3)
        assert torch.zeros(3, device=SECOND).normal_().tolist() != first
        device.set_rng_state(start)
        assert torch.randn(3, device=SECOND).tolist() == first
