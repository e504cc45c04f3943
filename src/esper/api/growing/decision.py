"""What a step of growth did and why: as data, and as a sentence."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from torch import Tensor

from esper.api.growing.budget import Limits, Pricing
from esper.api.growing.closing import Verdict
from esper.api.growing.evaluation import Reading
from esper.kasmina import (
    Blueprint,
    Family,
    GraftedModel,
    Site,
    SlotTable,
    Transitions,
    find_blueprint,
    next_alpha,
)
from esper.leyline import POINTS, Op, Stage


@dataclass(frozen=True, slots=True)
class Decision:
    """One step of growth. `print` shows it as a sentence."""

    epoch: int
    """How many steps there have been, this one included."""
    op: Op
    score: float
    """Quality of the whole network after this epoch: what `evaluate` returned if that is a score, else how far training
    has come since its first epoch, from 0 towards 1. NaN if it could not be measured."""
    value: float = math.nan
    """What `evaluate` returned, whatever its measure."""
    slot: str | None = None
    """Name of the submodule behind which the op took place; None for WAIT."""
    blueprint: str | None = None
    params: int = 0
    """Parameters of the seed in question."""
    added_params: int = 0
    """Parameters of all seeds after this step."""
    flops: int = 0
    """FLOPs that the seed in question adds to a forward pass of one sample."""
    added_flops: int = 0
    """The same for all seeds after this step."""
    budget_used: float | None = None
    """Share of the budget that all seeds take after this step; None without a budget."""
    contribution: float = math.nan
    """What the seed in question brings: score with it minus without it; of a loss, the share that it takes away; of any
    other metric, the share of the way that it has come."""
    rent: float = 0.0
    """What keeping the seed in question costs, in units of score."""
    reason: str = ""
    """Of a seed that was germinated: what it is, and what it connects or refines."""
    moved: tuple[str, ...] = ()
    """What seeds did by themselves, each as a clause."""
    rolled_back: str | None = None
    """Why the epoch was undone; None if it was good."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"op": int(self.op)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, "op": Op(data["op"])})

    def __str__(self) -> str:
        return "; ".join([self._deed(), *self.moved])

    def _deed(self) -> str:
        where = f"{self.blueprint} in {self.slot}"
        if self.rolled_back is not None:
            return f"rolled back to the last good epoch: {self.rolled_back}"
        if self.op is Op.GERMINATE:
            share = "" if self.budget_used is None else f", {100 * self.budget_used:.0f} % of budget"
            why = f" ({self.reason})" if self.reason else ""
            return f"germinated {where}: +{self.params:,} parameters, +{self.flops:,} FLOPs{share}{why}"
        gain = _gain(self.contribution, self.rent)
        if self.op is Op.FOSSILIZE:
            return f"kept {where} for good: {gain}"
        if self.op is Op.CULL:
            return f"culled {where}: {gain}, -{self.params:,} parameters, -{self.flops:,} FLOPs"
        return f"waited: evaluate returned {self.value:.4g}"


_CLAUSES = {
    Stage.BLENDING: "{seed} has learned and begins to blend in",
    Stage.HOLDING: "{seed} is blended in",
    Stage.CULLED: "{seed} did not learn and was culled",
    Stage.DORMANT: "{slot} is free again",
}
_COSTLY = "{seed} would have cost more than a point three times and was culled"


def tell_moves(
    sites: Sequence[Site], before: SlotTable, after: SlotTable, moves: Transitions, trials: Tensor
) -> tuple[str, ...]:
    """What the seeds of one host did at the end of an epoch, as clauses; `trials [1, S]` are those of its evidence.

    `before` still knows the blueprints of seeds that are gone.
    """

    def seed(slot: int) -> str:
        site, blueprint = sites[slot], int(before.blueprint[0, slot])
        return f"{find_blueprint(site.shape.family, blueprint).name} in {site.path}" if blueprint else ""

    clauses = []
    columns = (moves.slot, moves.new, moves.refused)
    for slot, new, refused in zip(*(column.tolist() for column in columns), strict=True):
        clause = _COSTLY if refused else _CLAUSES.get(Stage(new))
        if clause:
            clauses.append(clause.format(seed=seed(slot), slot=sites[slot].path))
    for slot in (after.holds > before.holds)[0].nonzero().flatten().tolist():
        alpha, cost = float(next_alpha(before)[0, slot]), -POINTS * float(trials[0, slot])
        clauses.append(f"alpha of {seed(slot)} holds: {alpha:.2f} would cost {cost:.1f} points")
    return tuple(clauses)


@dataclass(frozen=True, slots=True)
class Account:
    """Puts decisions about one network into words and numbers, by its prices and limits."""

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
        decision = self._with_seed(common, index, self.grafted.table if op == Op.GERMINATE else before)
        decision = replace(decision, contribution=float(before.contribution[0, index]))
        return replace(decision, reason=self._why(index)) if op == Op.GERMINATE else decision

    def of_verdict(self, epoch: int, verdict: Verdict, reading: Reading, before: SlotTable) -> Decision:
        """What became of a seed at the end; `before` is the table in which it was on trial."""
        common = self.of_network(epoch, Op.FOSSILIZE if verdict.kept else Op.CULL, reading)
        return replace(self._with_seed(common, verdict.index, before), contribution=verdict.contribution)

    def _with_seed(self, common: Decision, index: int, table: SlotTable) -> Decision:
        """`common` with what there is to tell of the seed that `table` has in a slot."""
        site, catalogue = self.grafted.sites[index], self.grafted.catalogue
        return replace(
            common,
            slot=site.path,
            blueprint=_kind(site, table, index).name,
            params=int(table.params[0, index]),
            flops=int(catalogue.planted_flops(table)[0, index]),
            rent=float(self.pricing.owed(table, catalogue)[index]),
        )

    def tell_verdict(self, verdict: Verdict) -> str:
        """A verdict on a seed that is still there, as a clause."""
        index, table = verdict.index, self.grafted.table
        site = self.grafted.sites[index]
        rent = float(self.pricing.owed(table, self.grafted.catalogue)[index])
        gain = _gain(verdict.contribution, rent)
        reason = "it was not blended in yet" if math.isnan(verdict.contribution) else gain
        return f"{'kept' if verdict.kept else 'left out'} {_kind(site, table, index).name} in {site.path} ({reason})"

    def _why(self, index: int) -> str:
        """Why the seed in a slot makes sense there, as a clause."""
        site = self.grafted.sites[index]
        blueprint = _kind(site, self.grafted.table, index)
        source = site.source_of(blueprint)
        if source is None:
            return f"{blueprint.summary}, to refine {_size(site)}"
        return f"{blueprint.summary}: it leads from {source} past all that is in between to {_size(site)}"


def _kind(site: Site, table: SlotTable, index: int) -> Blueprint:
    return find_blueprint(site.shape.family, int(table.blueprint[0, index]))


def _gain(contribution: float, rent: float) -> str:
    return f"it brings {POINTS * contribution:+.1f} points for a rent of {POINTS * rent:.1f}"


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
