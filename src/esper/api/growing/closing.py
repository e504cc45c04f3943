"""The end of a growth: what is still on trial is kept as it is, or goes, by what it brings now."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.api.growing.evaluation import Reading, at_alpha
from esper.kasmina import GraftedModel, SlotTable, settle
from esper.leyline import Stage


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


def settled(table: SlotTable, verdicts: Sequence[Verdict]) -> SlotTable:
    """The table when the verdicts are carried out."""
    kept = table.stage == Stage.FOSSILIZED
    kept[0, [verdict.index for verdict in verdicts if verdict.kept]] = True
    return settle(table, kept)
