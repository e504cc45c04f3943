"""The FLOPs of somebody's model: those of one sample, counted without leaving a trace."""

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina.flops import count_flops, flops_per_sample
from esper.leyline import InputError


def test_flops_of_known_layers() -> None:
    assert count_flops(nn.Linear(3, 5, bias=False), torch.randn(7, 3)) == 2 * 7 * 3 * 5
    assert count_flops(nn.Conv1d(2, 4, 3, padding=1, bias=False), torch.randn(1, 2, 10)) == 2 * 10 * 2 * 4 * 3
    assert count_flops(nn.SiLU(), torch.randn(2, 6)) == 12
    assert count_flops(nn.Flatten(), torch.randn(2, 6, 2)) == 0


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_they_are_those_of_one_sample_whatever_the_batch(batch: int) -> None:
    model = nn.Sequential(nn.Linear(3, 5, bias=False), nn.ReLU(), nn.Linear(5, 2, bias=False))
    assert flops_per_sample(model, torch.randn(batch, 3)) == 2 * 3 * 5 + 5 + 2 * 5 * 2
    assert flops_per_sample(model, {"input": torch.randn(batch, 3)}) == 55


def test_modes_statistics_and_random_state_stay_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    model[1].eval()
    before, modes, dice = model.state_dict(), [m.training for m in model.modules()], torch.get_rng_state()
    before = {name: tensor.clone() for name, tensor in before.items()}
    assert flops_per_sample(model, torch.randn(6, 3, generator=torch.Generator().manual_seed(0))) > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), dice)


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


def test_attention_counts_its_products_on_the_cpu_too() -> None:
    heads, length, width = 2, 16, 8
    products = 2 * (2 * heads * length * length * width)
    assert products <= count_flops(Attention(), torch.randn(1, heads, length, width)) <= 1.5 * products


def test_a_model_that_cannot_run_on_the_example_is_one_sentence_and_keeps_its_mode() -> None:
    model = nn.Linear(3, 5)
    with pytest.raises(InputError, match="the FLOPs of the model cannot be counted on the example: mat1 and mat2"):
        flops_per_sample(model, torch.randn(2, 4))
    assert model.training
