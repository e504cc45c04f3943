"""Eval mode for a while."""

import pytest
from torch import nn

from esper.kasmina.keeping import evaluating, modes_of


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
