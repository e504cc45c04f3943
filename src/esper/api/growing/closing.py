"""The end of a growth: what is still on trial is kept as it is, or goes, by what it brings now."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from esper.api.growing.decision import Decision
from esper.api.growing.evaluation import Reading, at_alpha
from esper.kasmina import GraftedModel, SlotTable, find_blueprint, settle
from esper.leyline import POINTS, Op, Stage


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one seed that was on trial."""

    index: int
    """Its slot's position in the table."""
    slot: str
    blueprint: str
    params: int
    flops: int
    kept: bool
    contribution: float
    """Score with it minus without it, the seeds that go left out; NaN if it has no effect yet."""
    rent: float

    @property
    def op(self) -> Op:
        """What is done about it."""
        return Op.FOSSILIZE if self.kept else Op.CULL

    def as_decision(self, common: Decision) -> Decision:
        """`common`, the decision as far as it tells of the whole network, with what it tells of this seed."""
        return replace(
            common,
            slot=self.slot,
            blueprint=self.blueprint,
            params=self.params,
            flops=self.flops,
            contribution=self.contribution,
            rent=self.rent,
        )

    def __str__(self) -> str:
        deed = "kept" if self.kept else "left out"
        if math.isnan(self.contribution):
            return f"{deed} {self.blueprint} in {self.slot} (it was not blended in yet)"
        gain = f"it brings {POINTS * self.contribution:+.1f} points for a rent of {POINTS * self.rent:.1f}"
        return f"{deed} {self.blueprint} in {self.slot} ({gain})"


def judge(grafted: GraftedModel, read: Callable[[Tensor], Reading], owed: Tensor) -> list[Verdict]:
    """A verdict for every seed on trial, in table order; `owed [S]` is their rent. Nothing is changed.

    A seed without effect goes. Of the others the one that falls short of its rent by most goes, and what is left is
    measured again, until all that is left pays: seeds that do the same work would otherwise all go, or all stay.
    """
    table = grafted.table
    on_trial = table.occupied[0] & (table.stage[0] != Stage.FOSSILIZED)
    verdicts: dict[int, float] = {}
    left = (on_trial & (table.alpha[0] > 0)).nonzero().flatten().tolist()
    gone = [index for index in on_trial.nonzero().flatten().tolist() if index not in left]
    while left:
        with ExitStack() as stack:
            for index in gone:
                stack.enter_context(at_alpha(grafted, index, 0.0))
            asked = torch.zeros_like(table.proven)
            asked[0, left] = True
            contributions = read(asked).contributions[0]
        verdicts |= {index: float(contributions[index]) for index in left}
        short = (owed - contributions).nan_to_num(torch.inf)  # what could not be measured does not stay
        worst = max(left, key=lambda index: float(short[index]))
        if short[worst] < 0:
            break
        left.remove(worst)
        gone.append(worst)
    return [_verdict(grafted, index, index in left, verdicts, owed) for index in sorted([*left, *gone])]


def settled(table: SlotTable, verdicts: Sequence[Verdict]) -> SlotTable:
    """The table when the verdicts are carried out."""
    kept = table.stage == Stage.FOSSILIZED
    kept[0, [verdict.index for verdict in verdicts if verdict.kept]] = True
    return settle(table, kept)


def _verdict(grafted: GraftedModel, index: int, kept: bool, measured: dict[int, float], owed: Tensor) -> Verdict:
    site, table = grafted.sites[index], grafted.table
    return Verdict(
        index,
        site.path,
        find_blueprint(site.shape.family, int(table.blueprint[0, index])).name,
        int(table.params[0, index]),
        int(grafted.catalogue.planted_flops(table)[0, index]),
        kept,
        measured.get(index, math.nan),
        float(owed[index]),
    )
