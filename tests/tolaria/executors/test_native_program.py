"""Modules as lines of a program: what is known, and what is refused by name."""

import pytest
import torch
from torch import Tensor, nn

from esper.leyline import InputError
from esper.tolaria.executors.native_kernels import Code, Field
from esper.tolaria.executors.native_program import Builder, record


class Odd(nn.Module):
    """Does something else."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(x, 1)


REFUSED: dict[str, tuple[nn.Module, tuple[int, ...], str]] = {
    "operation": (Odd(), (4,), "operation 'cumsum'"),
    "groups": (nn.GroupNorm(2, 4), (4, 3), "a normalisation"),
    "epsilon": (nn.LayerNorm(4, eps=1e-3), (4,), "a normalisation"),
    "dilation": (nn.Conv1d(2, 2, 3, dilation=2), (2, 9), "such a convolution"),
    "images": (nn.Conv2d(1, 2, 3), (1, 8, 8), "operation 'conv2d'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_by_name(name: str) -> None:
    module, shape, message = REFUSED[name]
    with pytest.raises(InputError, match=f"'native' does not know .*{message}.*use 'stacked' or 'loop'|{message}"):
        record(module, shape)


def test_a_module_may_be_used_twice_with_other_parameters() -> None:
    recording = record(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), (3,))
    builder = Builder((3,), torch.float32)
    first = builder.add(recording, builder.input, 0, learns=True, sends=False)
    second = builder.add(recording, first, 12, learns=False, sends=True)
    table = builder.build().table
    assert table[:, Field.CODE].tolist() == [Code.LINEAR, Code.RELU] * 2
    assert table[:, Field.WEIGHT].tolist() == [0, -1, 12, -1]
    assert table[:, Field.LEARNS].tolist() == [1, 1, 0, 0]
    assert table[0, Field.SENDS] & 1 == 0
    # Each has memory of its own, and the second reads what the first made.
    assert table[2, Field.SRC] == table[1, Field.DST] == first.row
    assert len({0, *table[:, Field.DST].tolist()}) == 5
    assert second.row == table[3, Field.DST]


def test_recording_draws_no_random_numbers_and_keeps_no_gradients() -> None:
    module = nn.Linear(3, 2)
    before = torch.get_rng_state()
    record(module, (3,))
    assert torch.equal(torch.get_rng_state(), before)
    assert module.weight.grad is None
