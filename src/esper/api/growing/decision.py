"""What growth may cost, what was decided (as data and as a sentence), and the verdict on seeds on trial at the end."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from esper.api.growing.evaluation import Reading, at_alpha
from esper.kasmina import (
    UNLIMITED,
    ActionMasks,
    Blueprint,
    Catalogue,
    Family,
    GraftedModel,
    Site,
    SlotTable,
    Transitions,
    action_masks,
    find_blueprint,
    next_alpha,
    settle,
)
from esper.kasmina.flops import flops_per_sample
from esper.leyline import POINTS, InputError, Op, Stage, rent
from esper.leyline.checks import check_amounts, check_field_types


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that all seeds together may add, at any time. Give at least one limit; of several, all hold."""

    params: int | None = None
    """Parameters."""
    flops: int | None = None
    """Floating-point operations of a forward pass of one sample."""
    ratio: float | None = None
    """Parameters, as a share of the model's own: 0.2 lets it grow by a fifth."""

    def __post_init__(self) -> None:
        if self.params is None and self.flops is None and self.ratio is None:
            raise InputError(
                "this Budget limits nothing; give params, flops or ratio, as in Budget(params=1000), "
                "or omit the budget to grow without one"
            )
        check_field_types(self)
        check_amounts(self)

    def of(self, host_params: int) -> "Limits":
        by_ratio = UNLIMITED if self.ratio is None else min(math.floor(self.ratio * host_params), UNLIMITED)
        params = min(UNLIMITED if self.params is None else self.params, by_ratio)
        return Limits(params, UNLIMITED if self.flops is None else self.flops)


@dataclass(frozen=True, slots=True)
class Limits:
    """A budget for one model: whole numbers, `UNLIMITED` where no limit was given."""

    params: int
    flops: int

    def masks(self, table: SlotTable, catalogue: Catalogue, epochs_left: Tensor | None = None) -> ActionMasks:
        """What is legal for N hosts, and keeps each of them within these limits and the `epochs_left [N]`, if given."""
        masks = action_masks(table, catalogue, torch.full((table.shape[0],), self.params), epochs_left)
        if self.flops == UNLIMITED:
            return masks
        left = self.flops - catalogue.planted_flops(table).sum(1)
        blueprint = masks.blueprint & (catalogue.flops <= left[:, None, None])
        slot = masks.slot.clone()
        slot[:, Op.GERMINATE] &= blueprint.any(2)
        return ActionMasks(slot.any(2), slot, blueprint, masks.blend)

    def used(self, table: SlotTable, catalogue: Catalogue) -> float | None:
        """The share of the tighter limit that the first host's seeds take; None without a limit."""
        amounts: list[tuple[int, Callable[[], Tensor]]] = [
            (self.params, lambda: table.added_params),
            (self.flops, lambda: catalogue.planted_flops(table).sum(1)),
        ]
        shares = [int(added()[0]) / limit if limit else 1.0 for limit, added in amounts if limit != UNLIMITED]
        return max(shares, default=None)


@dataclass(frozen=True, slots=True)
class Pricing:
    """The price of parameters and, optionally, of FLOPs, and the size of the model that they relate to."""

    host_params: int
    price: Tensor
    """`[1]`"""
    host_flops: int
    """Per sample; 1, and unused, where FLOPs have no price."""
    flop_price: float

    @classmethod
    def of(cls, host: nn.Module, example: Any, price: float, flop_price: float) -> Self:
        """For this model; its FLOPs are counted only if they have a price."""
        params = sum(parameter.numel() for parameter in host.parameters())
        paid = torch.tensor([_checked(price, "price")])
        flops = _counted(host, example) if _checked(flop_price, "flop_price") else 1
        return cls(params, paid, flops, float(flop_price))

    def owed(self, table: SlotTable, catalogue: Catalogue) -> Tensor:
        """`[S]`: what keeping the seed in each slot costs."""
        flops = catalogue.planted_flops(table)
        return rent(table.params, self.host_params, self.price, flops, self.host_flops, self.flop_price)[0]


def _checked(price: float, name: str) -> float:
    if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < math.inf:
        raise InputError(f"{name} must be a number of 0 or more; got {price!r}")
    return float(price)


def _counted(host: nn.Module, example: Any) -> int:
    remedy = "omit flop_price to charge for parameters only"
    try:
        counted = flops_per_sample(host, example)
    except InputError as error:
        raise InputError(f"{error}; {remedy}") from error
    if not counted:
        raise InputError(f"no FLOPs could be counted on the example; {remedy}")
    return counted


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
    """Contribution of the seed in question: score with it minus score without it; for a loss the relative reduction,
    for any other metric relative to the range it has covered."""
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
class Verdict:
    """What becomes of one seed that was on trial."""

    index: int
    """Its slot's position in the table."""
    kept: bool
    contribution: float
    """Score with it minus without it, the seeds that go left out; NaN if it has no effect yet."""


def judge(grafted: GraftedModel, read: Callable[[Tensor], Reading], owed: Tensor) -> list[Verdict]:
    """A verdict for every seed on trial, in table order; `owed [S]` is their rent. Nothing is changed.

    A seed without effect goes. Of the others the one that falls short of its rent by most goes, and what is left is
    measured again, until all that is left pays: seeds that do the same work would otherwise all go, or all stay.
    """
    table = grafted.table
    on_trial = table.on_trial[0]
    measured: dict[int, float] = {}
    left = (on_trial & (table.alpha[0] > 0)).nonzero().flatten().tolist()
    gone = [index for index in on_trial.nonzero().flatten().tolist() if index not in left]
    while left:
        with ExitStack() as stack:
            for index in gone:
                stack.enter_context(at_alpha(grafted, index, 0.0))
            asked = torch.zeros_like(table.proven)
            asked[0, left] = True
            contributions = read(asked).contributions[0]
        measured |= {index: float(contributions[index]) for index in left}
        short = (owed - contributions).nan_to_num(torch.inf)  # what could not be measured does not stay
        worst = max(left, key=lambda index: float(short[index]))
        if short[worst] < 0:
            break
        left.remove(worst)
        gone.append(worst)
    return [Verdict(index, index in left, measured.get(index, math.nan)) for index in sorted([*left, *gone])]


def apply_verdicts(table: SlotTable, verdicts: Sequence[Verdict]) -> SlotTable:
    """The table when the verdicts are carried out."""
    kept = table.stage == Stage.FOSSILIZED
    kept[0, [verdict.index for verdict in verdicts if verdict.kept]] = True
    return settle(table, kept)


@dataclass(frozen=True, slots=True)
class Account:
    """Describes decisions about one network, by its prices and limits."""

    grafted: GraftedModel
    pricing: Pricing
    limits: Limits

    def of_network(self, epoch: int, op: Op, reading: Reading) -> Decision:
        """The state of the whole network after a step."""
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
        """`common` with the facts of the seed that `table` has in a slot."""
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
        source = site.source_of(blueprint.reads)
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
