"""Places to grow that a model is proposed: where a branch has something to bypass and maps are small."""

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import graft, propose_sites
from esper.leyline import InputError


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.norm(self.conv(x)))


class Staged(nn.Module):
    """A stem, four stages of two blocks, a head: the usual picture network."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.stages = nn.ModuleList(nn.Sequential(Block(8), Block(8)) for _ in range(4))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        result: Tensor = self.head(x.mean((2, 3)))
        return result


class Layers(nn.Module):
    """Layers by name, one of them inside another."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.mix = nn.Sequential(nn.Linear(6, 6))
        self.out = nn.Linear(6, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.out(torch.relu(self.mix(self.embed(tokens))))
        return result


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def convolutions() -> nn.Sequential:
    blocks = [nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU()) for _ in range(5)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(243, 4))


def pooled() -> nn.Sequential:
    """Three times a convolution, an activation and a pooling; the last pooling leaves a single position."""
    blocks = [(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2)) for _ in range(3)]
    return nn.Sequential(*(layer for block in blocks for layer in block), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.parametrize(
    ("model", "example", "count", "expected"),
    [
        (mlp(), torch.randn(2, 6), None, ["3", "4", "5"]),
        (mlp(), torch.randn(2, 6), 3, ["2", "4", "5"]),
        (mlp(), torch.randn(2, 6), 1, ["4"]),
        (Staged(), torch.randn(2, 3, 9, 9), 5, ["stages.0", "stages.1", "stages.2", "stages.3", "head"]),
        (Staged(), torch.randn(2, 3, 9, 9), 2, ["stages.1", "stages.3"]),
        (Staged(), torch.randn(2, 3, 9, 9), None, ["stages.0", "stages.2", "stages.3"]),
        (Layers(), torch.randint(7, (2, 4)), None, ["out"]),
        (pooled(), torch.randn(2, 3, 16, 16), None, ["7", "11"]),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4), None, ["0", "1"]),
        (nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4), None, ["0"]),
        (convolutions(), torch.randn(2, 3, 9, 9), None, ["1.1", "1", "2.1", "2", "4.1", "4"]),
        (convolutions(), torch.randn(2, 3, 9, 9), 4, ["1", "2", "4", "6"]),
    ],
)
def test_blocks_are_proposed_in_order(
    model: nn.Module, example: Tensor, count: int | None, expected: list[str]
) -> None:
    assert propose_sites(model, example, count) == expected
    graft(model, at=expected, example=example)


class Formula(nn.Module):
    """Weights, and no submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Activated(Formula):
    """A submodule, but without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.act(x @ self.weight)
        return result


class Recurrent(nn.Module):
    """Its only submodule returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.cell(x)[0]
        return result


@pytest.mark.parametrize(
    ("model", "example", "message"),
    [
        (nn.Linear(4, 2), torch.randn(3, 4), r"this model has none; .* pass torch\.nn\.Sequential\(model\)"),
        (Formula(), torch.randn(3, 4), "slots go behind submodules, and this model has none"),
        (Activated(), torch.randn(3, 4), r"has weights; name those to use, as in at=\['act'\]$"),
        (nn.Sequential(nn.Tanh()), torch.randn(3, 2, 4), r"as in at=\{'0': 'features'\} for the last axis, of: 0$"),
        (Recurrent(), torch.randn(3, 2, 4), "no submodule returns one plain floating-point tensor with a width"),
        (nn.Sequential(nn.Flatten(0)), torch.randn(3, 4), "no submodule returns one plain floating-point tensor"),
    ],
)
def test_a_model_without_a_place_is_told_what_helps(model: nn.Module, example: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=f"no place to grow was found: .*{message}"):
        propose_sites(model, example, 3)


def test_what_a_model_without_a_place_is_advised_works() -> None:
    for model in (nn.Linear(4, 2), Formula()):
        assert propose_sites(nn.Sequential(model), torch.randn(3, 4), 3) == ["0"]
    graft(Activated(), at=["act"], example=torch.randn(3, 4))
    graft(nn.Sequential(nn.Tanh()), at={"0": "features"}, example=torch.randn(3, 2, 4))
