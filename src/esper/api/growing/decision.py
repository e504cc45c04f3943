"""What a step of growth did and why: as data, and as a sentence."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from torch import Tensor

from esper.kasmina import Site, SlotTable, Transitions, find_blueprint, next_alpha
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
        """As built-in types."""
        return asdict(self) | {"op": int(self.op)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
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
        gain = f"it brings {POINTS * self.contribution:+.1f} points for a rent of {POINTS * self.rent:.1f}"
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
