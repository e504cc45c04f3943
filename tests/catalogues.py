"""A catalogue with one more kind in it, for as long as a test asks."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from esper.kasmina import Blueprint, Family, SiteShape, blueprint, blueprints_of, find_blueprint
from esper.kasmina.blueprints import registry


class Shift(nn.Module):
    """Adds a constant to every feature."""

    def __init__(self, site: SiteShape) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(site.width))

    def forward(self, h: Tensor) -> Tensor:
        return self.shift.expand_as(h)


@contextmanager
def one_more_kind(family: Family = Family.FEATURES, name: str = "shift") -> Iterator[Blueprint]:
    """A kind under the next id of `family`; afterwards the registry is what it was."""
    before = dict(registry._REGISTRY)
    blueprint(family, len(blueprints_of(family)) + 1, name, "adds a constant")(Shift)
    try:
        yield find_blueprint(family, name)
    finally:
        registry._REGISTRY.clear()
        registry._REGISTRY.update(before)
