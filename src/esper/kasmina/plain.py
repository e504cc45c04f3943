"""A grown network as a plain one: the host's parts in a row, kept seeds as ordinary residual modules between them."""

import copy

from torch import Tensor, nn

from esper.kasmina.graft import GraftedModel
from esper.kasmina.hosts import Host
from esper.leyline import InputError, Stage


class Residual(nn.Module):
    """`h + module(h)`: a seed that was kept for good."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, h: Tensor) -> Tensor:
        """The input plus what the module adds to it."""
        result: Tensor = h + self.module(h)
        return result


def plain_network(model: GraftedModel) -> nn.Sequential:
    """A copy of a grown host of the zoo without slots, hooks or lifecycle; all its seeds must be kept or gone."""
    host = model.host
    if not isinstance(host, Host):
        raise InputError("only hosts of the zoo, which are chains of parts, can be made plain this way")
    unfinished = model.table.occupied & (model.table.stage != Stage.FOSSILIZED)
    if unfinished.any():
        raise InputError("a seed is still growing; keep or cull it first")
    layers: list[nn.Module] = []
    for index, name in enumerate(host.parts):
        part = copy.deepcopy(host.get_submodule(name))
        part._forward_hooks.clear()
        layers.append(part)
        if index < len(model.sites) and model.table.blueprint[0, index]:
            layers.append(Residual(copy.deepcopy(model.slots[index].get_submodule("seed"))))
    return nn.Sequential(*layers)
