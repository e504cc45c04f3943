"""Architectures written by hand: the shapes of module trees that people really write."""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.breadth.architecture import Architecture


def _image() -> Tensor:
    return torch.randn(4, 3, 16, 16)


def _rows() -> Tensor:
    return torch.randn(4, 12)


def _series() -> Tensor:
    return torch.randn(4, 3, 24)


def _sequence() -> Tensor:
    return torch.randn(4, 7, 12)


def _tokens() -> Tensor:
    return torch.randint(20, (4, 7))


def _conv(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU())


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut, with operations in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        h = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        h += x
        result: Tensor = self.relu(h)
        return result


class ResNet(nn.Module):
    """Stages of residual blocks, as in picture models."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 8)
        self.layer1 = nn.Sequential(ResidualBlock(8), ResidualBlock(8))
        self.layer2 = nn.Sequential(_conv(8, 16, 2), ResidualBlock(16))
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        result: Tensor = self.fc(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))
        return result


class UNet(nn.Module):
    """Down, up, and connections across."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = _conv(3, 8), _conv(8, 16, 2), _conv(16, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.merge, self.out = _conv(16, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """A map of logits."""
        first = self.down1(x)
        deep = self.middle(self.down2(first))
        result: Tensor = self.out(self.merge(torch.cat([first, self.up(deep)], 1)))
        return result


class DenseNet(nn.Module):
    """Every layer sees all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_conv(3 + 8 * i, 8) for i in range(3))
        self.head = nn.Linear(27, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        result: Tensor = self.head(x.mean((2, 3)))
        return result


class MixerBlock(nn.Module):
    """MLPs along tokens and along channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.token_mlp = nn.Sequential(nn.Linear(tokens, 16), nn.GELU(), nn.Linear(16, tokens))
        self.channel_mlp = nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, width))

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        x = x + self.token_mlp(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        result: Tensor = x + self.channel_mlp(self.norm2(x))
        return result


class Mixer(nn.Module):
    """Patches, mixer blocks, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 12, 4, 4)
        self.blocks = nn.Sequential(*(MixerBlock(16, 12) for _ in range(3)))
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        result: Tensor = self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))
        return result


class Recurrent(nn.Module):
    """A recurrent layer between two linear ones; its output is a tuple."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inlet = nn.Linear(12, 12)
        self.core = getattr(nn, kind)(12, 12, batch_first=True)
        self.outlet = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 5))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the last position."""
        result: Tensor = self.outlet(self.core(self.inlet(x))[0][:, -1])
        return result


class BareRecurrent(nn.Module):
    """An LSTM and a head: no submodule but the head returns a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.LSTM(12, 12, batch_first=True), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        result: Tensor = self.head(self.core(x)[0][:, -1])
        return result


class GraphLayer(nn.Module):
    """Mean over neighbours, then a linear map."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        """The nodes after one exchange."""
        return torch.relu(self.own(nodes) + self.others(adjacency @ nodes))


class GraphNet(nn.Module):
    """Message passing over nodes and an adjacency matrix, given by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(12, 12)
        self.layers = nn.ModuleList(GraphLayer(12) for _ in range(3))
        self.head = nn.Linear(12, 5)

    def forward(self, *, nodes: Tensor, adjacency: Tensor) -> Tensor:
        """Logits of the graph."""
        h = self.embed(nodes)
        for layer in self.layers:
            h = layer(h, adjacency)
        result: Tensor = self.head(h.mean(1))
        return result


def _graph() -> dict[str, Tensor]:
    return {"nodes": torch.randn(4, 9, 12), "adjacency": torch.rand(4, 9, 9).softmax(-1)}


class Shared(nn.Module):
    """One block, run three times (a universal transformer in small)."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12))
        self.inlet, self.head = nn.Linear(12, 12), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        h = self.inlet(x)
        for _ in range(3):
            h = h + self.block(h)
        result: Tensor = self.head(h)
        return result


class TiedLanguageModel(nn.Module):
    """An embedding that is the output layer too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 12), nn.GELU()) for _ in range(3))
        self.out = nn.Linear(12, 20, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of every position."""
        h = self.embed(tokens)
        for block in self.blocks:
            h = h + block(h)
        result: Tensor = self.out(h)
        return result


class TupleOutputs(nn.Module):
    """Several results at once, in a dictionary with a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.ModuleList(nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(3))
        self.mean, self.spread = nn.Linear(12, 4), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> dict[str, Any]:
        """Mean and spread, and what led to them."""
        for layer in self.trunk:
            x = layer(x)
        return {"latent": (self.mean(x), F.softplus(self.spread(x))), "hidden": x}


class Autoencoder(nn.Module):
    """Down to a few numbers and back, with strided and transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 2, 2), nn.ReLU(), nn.ConvTranspose2d(8, 3, 2, 2), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        """The picture again."""
        result: Tensor = self.decoder(self.encoder(x))
        return result


class TwoTowers(nn.Module):
    """Two inputs, two towers, a similarity."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8))
        self.right = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, rows: Tensor, image: Tensor) -> Tensor:
        """Similarity of all pairs."""
        left, right = self.left(rows), self.right(image)
        result: Tensor = left @ right.T
        return result


class Experts(nn.Module):
    """A gate that mixes experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(12, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12)) for _ in range(3))
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        weights = self.gate(x).softmax(-1)
        mixed = sum(weights[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
        result: Tensor = self.head(mixed)
        return result


class Checkpointed(nn.Module):
    """Recomputes its blocks in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(12, 12), nn.ReLU()) for _ in range(3))
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        result: Tensor = self.head(x)
        return result


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(12, 2, 24, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(12, 5))


def _channels_last() -> nn.Module:
    model: nn.Module = ResNet().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def _weight_normed() -> nn.Module:
    layers = [nn.utils.parametrizations.weight_norm(nn.Linear(12, 12)) for _ in range(2)]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), nn.Linear(12, 5))


def _temporal() -> nn.Module:
    blocks = [nn.Sequential(nn.Conv1d(8, 8, 3, padding=2**i, dilation=2**i), nn.ReLU()) for i in range(3)]
    return nn.Sequential(nn.Conv1d(3, 8, 1), *blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 5))


def _mlp(*widths: int) -> nn.Module:
    layers = [part for i, o in pairwise(widths) for part in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 5))


def _narrow() -> nn.Module:
    layers = [part for _ in range(5) for part in (nn.Linear(5, 5), nn.Tanh())]
    return nn.Sequential(nn.Linear(12, 5), *layers, nn.Linear(5, 5))


def _cnn(norm: type[nn.Module] | None = None) -> nn.Module:
    extra = [norm(8) if norm is not nn.GroupNorm else nn.GroupNorm(2, 8)] if norm else []
    body = [nn.Conv2d(3, 8, 3), *extra, nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU()]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


HANDMADE = [
    Architecture("MLP", "MLP", lambda: _mlp(12, 16, 16), _rows),
    Architecture("wide MLP", "MLP", lambda: _mlp(12, 128), _rows),
    Architecture("deep narrow MLP", "MLP", _narrow, _rows),
    Architecture("weight-normalised MLP", "MLP", _weight_normed, _rows),
    Architecture("plain CNN", "CNN", _cnn, _image),
    Architecture("CNN with batch normalisation", "CNN", lambda: _cnn(nn.BatchNorm2d), _image),
    Architecture("CNN with group normalisation", "CNN", lambda: _cnn(nn.GroupNorm), _image),
    Architecture("ResNet by hand", "CNN", ResNet, _image),
    Architecture(
        "channels-last ResNet", "CNN", _channels_last, lambda: _image().contiguous(memory_format=torch.channels_last)
    ),
    Architecture("DenseNet", "CNN", DenseNet, _image),
    Architecture("U-Net", "CNN", UNet, _image),
    Architecture("autoencoder", "CNN", Autoencoder, _image),
    Architecture("temporal CNN", "1-D CNN", _temporal, _series),
    Architecture("mixer", "mixer", Mixer, _image),
    Architecture("LSTM between linear layers", "RNN", lambda: Recurrent("LSTM"), _sequence),
    Architecture("GRU between linear layers", "RNN", lambda: Recurrent("GRU"), _sequence),
    Architecture("bare LSTM", "RNN", BareRecurrent, _sequence),
    Architecture("graph network", "GNN", GraphNet, _graph),
    Architecture("repeated block", "shared", Shared, _rows),
    Architecture("tied language model", "tied", TiedLanguageModel, _tokens),
    Architecture("tuple outputs", "outputs", TupleOutputs, _rows),
    Architecture("two towers", "inputs", TwoTowers, lambda: [_rows(), _image()]),
    Architecture("mixture of experts", "experts", Experts, _rows),
    Architecture("checkpointed blocks", "checkpointing", Checkpointed, _rows),
    Architecture("nn.TransformerEncoder", "transformer", _encoder, _sequence),
]
