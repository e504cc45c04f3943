"""A small causal language model."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.hosts.registry import Host, host
from esper.leyline import InputError


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
