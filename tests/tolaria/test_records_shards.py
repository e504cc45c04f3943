"""Hosts shared out, and joined again."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from esper.tolaria.records import Shard, join, share_out


@dataclass
class Said:
    scores: Tensor
    parts: dict[str, Tensor]
    length: int = 3


def test_shards_are_consecutive_and_differ_by_one_at_most() -> None:
    assert share_out(7, 3) == [Shard(0, 2), Shard(2, 2), Shard(4, 3)]
    assert [host in Shard(2, 2) for host in range(5)] == [False, False, True, True, False]


def test_tensors_of_hosts_are_joined_and_what_is_the_same_for_all_is_taken_once() -> None:
    numbers = torch.arange(7.0)
    said = [Said(numbers[shard.hosts], {"twice": 2 * numbers[shard.hosts]}) for shard in share_out(7, 3)]
    joined = join(said)
    assert torch.equal(joined.scores, numbers)
    assert torch.equal(joined.parts["twice"], 2 * numbers)
    assert joined.length == 3


def test_what_cannot_be_joined_is_refused() -> None:
    with pytest.raises(TypeError, match="must be tensors in dataclasses; got list"):
        join([[1], [2]])
