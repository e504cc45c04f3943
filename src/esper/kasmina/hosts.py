"""Hosts: networks that come with named places to grow. A new one is one decorated class in this file.

The registry knows each by a name, a config dataclass with defaults, and a module built from it.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.leyline import InputError, unknown_name


class Host(nn.Module):
    """A plain network: a chain of submodules, with places to grow behind some of them.

    Hosts keep no running statistics (GroupNorm and LayerNorm only), so that many of them can run as one.
    """

    parts: tuple[str, ...]
    """The names of the submodules in the order in which they run; a part that is a sequence is one of its children."""
    slot_sites: tuple[str, ...]
    """The submodules behind which the host can grow, in that order."""

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for part in self.parts:
            h = self.get_submodule(part)(h)
        return h


class BlockHost(Host):
    """A host made of something that shapes its `input`, `blocks` that end in an activation, and a `head`.

    It can grow behind each block, in front of the block's activation (where a branch widens the block's own layer), and
    at its output.
    """

    input: nn.Module
    blocks: nn.ModuleList
    head: nn.Module

    def name_parts(self) -> None:
        """To be called when all submodules are there."""
        blocks = [(f"blocks.{index}", block) for index, block in enumerate(self.blocks)]
        self.parts = ("input", *(name for name, _ in blocks), "head")
        inner = [(f"{name}.{len(block) - 2}", name) for name, block in blocks if isinstance(block, nn.Sequential)]
        self.slot_sites = (*itertools.chain.from_iterable(inner), "head")

    def forward(self, x: Tensor) -> Tensor:
        """The logits for a batch; the same as the parent's, without looking up names at every call."""
        h = self.input(x)
        for block in self.blocks:
            h = block(h)
        logits: Tensor = self.head(h)
        return logits


HostT = TypeVar("HostT", bound=Callable[[Any], Host])


_REGISTRY: dict[str, tuple[Callable[[Any], Host], Any]] = {}
"""The class of each host, and its default config."""


def host(name: str, config: Any, **presets: Any) -> Callable[[HostT], HostT]:
    """Register the decorated class, whose constructor takes a config, as the host `name`.

    `config` is the default; each preset `key=config` becomes the host `name-key`.
    """

    def register(host_class: HostT) -> HostT:
        _REGISTRY[name] = (host_class, config)
        for key, preset in presets.items():
            _REGISTRY[f"{name}-{key}"] = (host_class, preset)
        return host_class

    return register


def host_names() -> list[str]:
    return sorted(_REGISTRY)


def build_host(name: str, **overrides: Any) -> Host:
    """The host called `name`, its config fields replaced by `overrides`."""
    if name not in _REGISTRY:
        raise unknown_name("host", name, host_names())
    build, default = _REGISTRY[name]
    allowed = [spec.name for spec in fields(default)]
    for key in overrides:
        if key not in allowed:
            raise unknown_name(f"setting of host {name!r}:", key, allowed)
    config = replace(default, **overrides)
    for spec in fields(config):
        value = getattr(config, spec.name)
        sizes = value if isinstance(value, tuple) else (value,)
        if not sizes or any(not isinstance(size, int) or size < 1 for size in sizes):
            raise InputError(f"setting {spec.name!r} of host {name!r} must be positive whole numbers; got {value!r}")
    return build(config)


@dataclass(frozen=True, slots=True)
class MLPConfig:
    """Sizes of an MLP."""

    inputs: int = 40
    widths: tuple[int, ...] = (64, 64, 64)
    classes: int = 10


@host("mlp", MLPConfig())
class MLPHost(BlockHost):
    """Linear layers with ReLU; inputs `[N, ...]` are flattened."""

    def __init__(self, config: MLPConfig) -> None:
        super().__init__()
        sizes = (config.inputs, *config.widths)
        self.input = nn.Flatten()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(before, after), nn.ReLU()) for before, after in itertools.pairwise(sizes)
        )
        self.head = nn.Linear(sizes[-1], config.classes)
        self.name_parts()


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


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """Sizes of a transformer."""

    vocabulary: int = 256
    context: int = 64
    width: int = 64
    layers: int = 2
    heads: int = 4


class _Position(nn.Module):
    """Adds what stands for its place to every token."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.context, config.width)

    def forward(self, h: Tensor) -> Tensor:
        placed: Tensor = h + self.embedding(torch.arange(h.shape[1], device=h.device))
        return placed


class _Block(nn.Module):
    """Attention and MLP, each behind a LayerNorm and beside a skip connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, h: Tensor) -> Tensor:
        split = self.query_key_value(self.attention_norm(h)).unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        h = h + self.attention_out(mixed.transpose(1, 2).flatten(2))
        out: Tensor = h + self.mlp(h)
        return out


@host("transformer", TransformerConfig(), large=TransformerConfig(context=128, width=128, layers=4))
class TransformerHost(Host):
    """Decoder blocks over a fixed context, tokens `[N, T]` in; slots behind the embedding, each block and the head."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        if config.width % config.heads:
            raise InputError(f"transformer width {config.width} is not a multiple of its {config.heads} heads")
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.position = _Position(config)
        self.blocks = nn.ModuleList(_Block(config.width, config.heads) for _ in range(config.layers))
        self.head = nn.Sequential(nn.LayerNorm(config.width), nn.Linear(config.width, config.vocabulary))
        self.slot_sites = ("position", *(f"blocks.{index}" for index in range(config.layers)), "head")
        self.parts = ("embedding", *self.slot_sites)
