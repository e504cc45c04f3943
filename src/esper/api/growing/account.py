"""What a step of growth did, and why there: a decision put together from the network, its prices and its limits."""

from dataclasses import dataclass, replace

from torch import Tensor

from esper.api.growing.budget import Limits
from esper.api.growing.decision import Decision
from esper.api.growing.evaluation import Reading
from esper.api.growing.pricing import Pricing
from esper.kasmina import Blueprint, Family, GraftedModel, Site, SlotTable, find_blueprint
from esper.leyline import Op


@dataclass(frozen=True, slots=True)
class Account:
    """Puts decisions about one network into words and numbers."""

    grafted: GraftedModel
    pricing: Pricing
    limits: Limits

    def of_network(self, epoch: int, op: Op, reading: Reading) -> Decision:
        """What there is to tell of the whole network after a step."""
        table = self.grafted.table
        return Decision(
            epoch,
            op,
            reading.score,
            reading.value,
            added_params=int(table.added_params),
            added_flops=int(self.grafted.catalogue.planted_flops(table).sum()),
            budget_used=self.limits.used(table, self.grafted.catalogue),
        )

    def of_action(self, epoch: int, action: Tensor, reading: Reading, before: SlotTable) -> Decision:
        """What an action `[4]` did, by the table `before` it and the one that the network has now."""
        index, _, _, op = action.tolist()
        common = self.of_network(epoch, Op(op), reading)
        if op == Op.WAIT:
            return common
        site, catalogue = self.grafted.sites[index], self.grafted.catalogue
        table = self.grafted.table if op == Op.GERMINATE else before
        blueprint = find_blueprint(site.shape.family, int(table.blueprint[0, index]))
        return replace(
            common,
            slot=site.path,
            blueprint=blueprint.name,
            params=int(table.params[0, index]),
            flops=int(catalogue.planted_flops(table)[0, index]),
            contribution=float(before.contribution[0, index]),
            rent=float(self.pricing.owed(table, catalogue)[index]),
            reason=_why(site, blueprint) if op == Op.GERMINATE else "",
        )


def _why(site: Site, blueprint: Blueprint) -> str:
    """Why a seed of this kind makes sense at this site, as a clause."""
    source = site.source_of(blueprint)
    if source is None:
        return f"{blueprint.summary}, to refine {_size(site)}"
    return f"{blueprint.summary}: it leads from {source} past all that is in between to {_size(site)}"


def tell_site(site: Site) -> str:
    """What a slot at this site is good for, as a sentence."""
    sources = dict(site.sources)
    source = sources.get("far") or sources.get("near")
    if source is None:
        return f"{site.path} ({_size(site)}): no earlier tensor can be joined to it, so seeds can only refine it."
    return f"{site.path} ({_size(site)}): a branch from {source} can lead past all that is in between."


def _size(site: Site) -> str:
    shape = site.shape
    unit = "feature" if shape.family is Family.FEATURES else "channel"
    width = f"{shape.width} {unit}{'' if shape.width == 1 else 's'}"
    return f"{width} at {' x '.join(map(str, shape.extent))} positions" if shape.extent else width
