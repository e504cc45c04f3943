"""Blueprints for feature vectors `[..., D]`: MLPs and transformers."""

import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.blueprints.parts import MIN_BOTTLENECK, ScaledSeed, bottleneck, can_normalise, output_scale
from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.sites import Family, SiteShape

_MAX_HEADS = 4


@blueprint(Family.FEATURES, 1, "norm", "normalises features anew", fits=can_normalise)
class FeatureNorm(nn.Module):
    """A layer normalisation whose own weight is the output scale."""

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(site.width)

    def silence(self) -> None:
        nn.init.zeros_(self.norm.weight)

    def forward(self, h: Tensor) -> Tensor:
        result: Tensor = self.norm(h)
        return result


@blueprint(Family.FEATURES, 2, "low_rank", "a linear map through a bottleneck", affine=True)
class LowRank(ScaledSeed):
    """The cheapest way to mix features."""

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        rank = bottleneck(site.width, 8)
        self.down = nn.Linear(site.width, rank, bias=False)
        self.up = nn.Linear(rank, site.width)
        self.scale = output_scale(site)

    def forward(self, h: Tensor) -> Tensor:
        return self.scaled(self.up(self.down(h)))


@blueprint(Family.FEATURES, 3, "gated", "a gated unit of half the width", fits=can_normalise)
class Gated(ScaledSeed):
    """One half decides how much of the other passes."""

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        hidden = bottleneck(site.width, 2)
        self.norm = nn.LayerNorm(site.width)
        self.value_and_gate = nn.Linear(site.width, 2 * hidden)
        self.out = nn.Linear(hidden, site.width)
        self.scale = output_scale(site)

    def forward(self, h: Tensor) -> Tensor:
        value, gate = self.value_and_gate(self.norm(h)).chunk(2, -1)
        return self.scaled(self.out(value * F.silu(gate)))


@blueprint(Family.FEATURES, 4, "mlp", "two layers of twice the width", fits=can_normalise)
class MLP(ScaledSeed):
    """A plain residual MLP."""

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(site.width)
        self.hidden = nn.Linear(site.width, 2 * site.width)
        self.out = nn.Linear(2 * site.width, site.width)
        self.scale = output_scale(site)

    def forward(self, h: Tensor) -> Tensor:
        return self.scaled(self.out(F.silu(self.hidden(self.norm(h)))))


def _num_heads(width: int) -> int:
    """The most heads, up to four, that divide `width` and are wide enough to learn."""
    fitting = [n for n in range(1, _MAX_HEADS + 1) if width % n == 0 and width // n >= MIN_BOTTLENECK]
    return max(fitting, default=1)


@blueprint(
    Family.FEATURES,
    5,
    "attention",
    "causal attention over a sequence",
    fits=lambda site: site.positions > 1 and can_normalise(site),
)
class CausalAttention(ScaledSeed):
    """Self-attention that never looks ahead, so that it is safe inside a language model too.

    Queries and keys have no bias: softmax ignores a shift of all keys, so a key bias would never learn.
    """

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        self.num_heads = _num_heads(site.width)
        self.norm = nn.LayerNorm(site.width)
        self.query_key_value = nn.Linear(site.width, 3 * site.width, bias=False)
        self.out = nn.Linear(site.width, site.width)
        self.scale = output_scale(site)

    def forward(self, h: Tensor) -> Tensor:
        heads = self.query_key_value(self.norm(h)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.scaled(self.out(mixed.transpose(1, 2).flatten(2)))
