"""Eval mode and random numbers for a while, and everything put back."""

import pytest
import torch
from torch import nn

from esper.kasmina.keeping import evaluating, keeping_random_state, modes_of, random_state
from tests.second_device import SECOND


class Merging(nn.Linear):
    """Does more than set the flag, as layers with adapters do."""

    merged = False

    def train(self, mode: bool = True) -> "Merging":
        self.merged = not mode
        return super().train(mode)


def test_every_module_is_put_back_even_after_an_error() -> None:
    network, other = nn.Sequential(Merging(2, 2), nn.Dropout(), nn.Sequential(nn.Dropout())), nn.Dropout()
    network[1].eval()
    before = modes_of(network, other)

    def fail() -> None:
        with evaluating(network, other):
            assert not any(modes_of(network, other).values())
            assert network[0].merged
            network.train()
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert modes_of(network, other) == before
    assert not network[0].merged


def draw() -> tuple[float, float]:
    return float(torch.rand(1)), float(torch.rand(1, device=SECOND))


@pytest.mark.usefixtures("drawing")
def test_the_random_state_of_a_network_is_kept_on_its_devices() -> None:
    network = nn.Linear(2, 2).to(SECOND)
    start = random_state(network)
    first = draw()
    with keeping_random_state(network):
        second = draw()
        with keeping_random_state(network, start):
            assert draw() == first
    assert draw() == second


@pytest.mark.usefixtures("drawing")
def test_devices_that_hold_nothing_of_a_network_are_left_alone() -> None:
    assert list(random_state(nn.Linear(2, 2))) == [torch.device("cpu")]
