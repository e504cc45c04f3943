"""A grown host of the zoo as a plain one: its parts in a row, with the seeds that were kept inside of them."""

from dataclasses import replace

from torch import nn

from esper.kasmina.export.fold import bare_copy, insert_kept, kept_seeds
from esper.kasmina.graft import GraftedModel
from esper.kasmina.hosts import Host
from esper.leyline import InputError, Stage


def plain_network(model: GraftedModel) -> nn.Sequential:
    """A copy of a grown host of the zoo without slots, hooks or lifecycle; all its seeds must be kept or gone."""
    host = model.host
    if not isinstance(host, Host):
        raise InputError("only hosts of the zoo, which are chains of parts, can be made plain this way")
    unfinished = model.table.occupied & (model.table.stage != Stage.FOSSILIZED)
    if unfinished.any():
        raise InputError("a seed is still growing; keep or cull it first")
    bare = bare_copy(host)
    network = nn.Sequential(*map(bare.get_submodule, host.parts))
    kept = {}
    for seed in kept_seeds(model, model.table):
        source = seed.source and replace(seed.source, path=_in_chain(host, seed.source.path))
        kept[_in_chain(host, seed.site.path)] = replace(seed, source=source)
    insert_kept(network, kept)
    return network


def _in_chain(host: Host, path: str) -> str:
    """The name that a submodule of the host has in the chain of its parts."""
    for index, part in enumerate(host.parts):
        if f"{path}.".startswith(f"{part}."):
            return f"{index}{path.removeprefix(part)}"
    return path
