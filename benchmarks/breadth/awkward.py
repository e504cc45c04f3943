"""Architectures in which an earlier tensor is not always what it seems: left out, a mask, or of somebody else."""

import torch
from torch import Tensor, nn

from benchmarks.breadth.architecture import Architecture


def _block(width: int = 12) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.2))


class LayerDropout(nn.Module):
    """Leaves out blocks in training, as layer dropout does; here in turn, so that none is left out twice in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(_block() for _ in range(4)), nn.Linear(12, 5)
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        self.passes += self.training
        for number, block in enumerate(self.blocks):
            if not self.training or number != self.passes % len(self.blocks):
                x = x + block(x)
        result: Tensor = self.head(x)
        return result


class MaskedMean(nn.Module):
    """Takes a floating-point mask before what it masks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body = nn.Linear(12, 12), nn.Sequential(_block(), nn.Linear(12, 5))

    def forward(self, mask: Tensor, x: Tensor) -> Tensor:
        """Logits."""
        h = self.embed(x) * mask[..., None]
        result: Tensor = self.body(h.sum(1) / mask.sum(1, keepdim=True))
        return result


class Translator(nn.Module):
    """An encoder and a decoder, whose lengths are the same only here."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.encoder, self.decoder = nn.Embedding(20, 12), _block(), nn.ModuleList([_block(), _block()])
        self.targets, self.attention = nn.Embedding(20, 12), nn.MultiheadAttention(12, 2, batch_first=True)
        self.head = nn.Linear(12, 20)

    def forward(self, *, tokens: Tensor, targets: Tensor) -> Tensor:
        """Logits of every position of the targets."""
        memory, h = self.encoder(self.table(tokens)), self.targets(targets)
        for block in self.decoder:
            h = h + block(h + self.attention(h, memory, memory)[0])
        result: Tensor = self.head(h)
        return result


class Pairs(nn.Module):
    """Two towers for inputs of the same shape, as where pairs are to be found."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(_block(), _block(), nn.Linear(12, 8))
        self.right = nn.Sequential(_block(), _block(), nn.Linear(12, 8))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Similarity of all pairs."""
        result: Tensor = self.left(left) @ self.right(right).T
        return result


def _rows() -> Tensor:
    return torch.randn(4, 12)


def _tokens() -> Tensor:
    return torch.randint(20, (4, 7))


AWKWARD = [
    Architecture("MLP with dropout", "dropout", lambda: nn.Sequential(*(_block() for _ in range(3))), _rows),
    Architecture("layer dropout", "dropout", LayerDropout, _rows),
    Architecture("masked mean", "inputs", MaskedMean, lambda: [torch.ones(4, 7), torch.randn(4, 7, 12)]),
    Architecture("translator", "inputs", Translator, lambda: {"tokens": _tokens(), "targets": _tokens()}),
    Architecture("towers of one shape", "inputs", Pairs, lambda: [_rows(), _rows()]),
]
