"""Minibatches of a host."""

import torch

from esper.tolaria.executors.base import BatchStream


def test_minibatches_are_whole_passes_in_an_order_of_their_own() -> None:
    stream = BatchStream(10, 4, torch.Generator().manual_seed(0))
    first = torch.cat([next(stream), next(stream)])
    assert len(set(first.tolist())) == 8  # the two left over are skipped
    again = BatchStream(10, 4, torch.Generator().manual_seed(0))
    assert torch.equal(first, torch.cat([next(again), next(again)]))
