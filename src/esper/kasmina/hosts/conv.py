"""Convolutional hosts for series and images."""

import itertools
from dataclasses import dataclass

from torch import Tensor, nn

from esper.kasmina.hosts.registry import BlockHost, host


@dataclass(frozen=True, slots=True)
class Conv1dConfig:
    """Sizes of a convolutional network over series."""

    inputs: int = 1
    channels: tuple[int, ...] = (12, 12, 12)
    first_kernel: int = 5
    kernel: int = 3
    classes: int = 10


class _ChannelAxis(nn.Module):
    """Series `[N, L]` become series of one channel."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(1) if x.ndim == 2 else x


class _MeanOverPositions(nn.Module):
    """Feature maps `[N, C, ...]` become features `[N, C]`."""

    def forward(self, h: Tensor) -> Tensor:
        return h.flatten(2).mean(2)


@host("conv1d", Conv1dConfig())
class Conv1dHost(BlockHost):
    """Stride-2 convolutions with ReLU over series `[N, L]` or `[N, C, L]`, then pooling and a linear layer."""

    def __init__(self, config: Conv1dConfig) -> None:
        super().__init__()
        sizes = (config.inputs, *config.channels)
        kernels = (config.first_kernel, *[config.kernel] * (len(config.channels) - 1))
        self.input = _ChannelAxis()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv1d(before, after, kernel, stride=2, padding=1), nn.ReLU())
            for before, after, kernel in zip(sizes[:-1], sizes[1:], kernels, strict=True)
        )
        self.head = nn.Sequential(_MeanOverPositions(), nn.Linear(sizes[-1], config.classes))
        self.name_parts()


@dataclass(frozen=True, slots=True)
class Conv2dConfig:
    """Sizes of a convolutional network over images."""

    inputs: int = 3
    channels: tuple[int, ...] = (16, 32, 64)
    convs_per_block: int = 1
    classes: int = 10


def _conv2d_block(before: int, after: int, convs: int, stride: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index in range(convs):
        layers += [
            nn.Conv2d(before if index == 0 else after, after, 3, stride if index == 0 else 1, padding=1, bias=False),
            nn.GroupNorm(4 if after % 4 == 0 else 1, after),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)


@host("conv2d", Conv2dConfig(), cifar10=Conv2dConfig(channels=(32, 64, 128), convs_per_block=2))
class Conv2dHost(BlockHost):
    """Convolutions with GroupNorm over images `[N, C, H, W]`; every block but the first halves the image."""

    def __init__(self, config: Conv2dConfig) -> None:
        super().__init__()
        sizes = (config.inputs, *config.channels)
        self.input = nn.Identity()
        self.blocks = nn.ModuleList(
            _conv2d_block(before, after, config.convs_per_block, stride=1 if index == 0 else 2)
            for index, (before, after) in enumerate(itertools.pairwise(sizes))
        )
        self.head = nn.Sequential(_MeanOverPositions(), nn.Linear(sizes[-1], config.classes))
        self.name_parts()
