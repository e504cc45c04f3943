"""The slot table: the state of every slot of every host as `[N, S]` tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor

from esper.kasmina.blueprints import num_blueprints
from esper.leyline import NO_BLUEPRINT, NUM_BLENDS, InputError, Stage

NOT_MEASURED = float("nan")
_COUNTS = ("epochs_in_stage", "blend_epoch", "pauses", "holds", "measurements", "params")
_MOST = 2**53
"""More than any count comes to."""
_OCCUPIED_CODES = torch.tensor([Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED])
"""Stages in which a slot holds a seed."""


@dataclass(slots=True)
class SlotTable:
    """Struct of arrays over N hosts and S slots; every field is `[N, S]`. NaN means not measured."""

    stage: Tensor
    """Stage codes."""
    alpha: Tensor
    """Blending weight in the epoch to come."""
    blueprint: Tensor
    """Blueprint ids from 1 on; 0 where the slot is empty."""
    blend: Tensor
    """Blend codes of the seeds."""
    epochs_in_stage: Tensor
    """Epochs finished since the stage was entered."""
    blend_epoch: Tensor
    """Which epoch of the blending schedule sets alpha, 1 to 3; 0 before blending."""
    pauses: Tensor
    """How often a gated blend has stood still."""
    holds: Tensor
    """How often alpha has held because the next one would have cost too much."""
    healthy: Tensor
    """Whether every epoch in which the seed had to learn had a finite loss and a seed gradient."""
    measurements: Tensor
    """Counterfactuals taken since alpha rose above 0."""
    proven: Tensor
    """Whether the seed has been measured at alpha 1."""
    contribution: Tensor
    """Validation score with the seed minus without it, in the last epoch."""
    score_at_germination: Tensor
    """Validation score of the host when the seed was germinated."""
    improvement: Tensor
    """Validation score in the last epoch minus that at germination: seed and host together."""
    seed_grad_norm: Tensor
    """Gradient norm of the seed in the last epoch."""
    params: Tensor
    """Parameters that the seed adds."""

    @classmethod
    def empty(cls, num_hosts: int, num_slots: int) -> Self:
        return cls(**{name: torch.full((num_hosts, num_slots), value) for name, value in _DORMANT.items()})

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any], num_slots: int) -> Self:
        """The table of one host from its saved columns; anything that no table could hold is refused by name."""
        if not isinstance(columns, Mapping) or set(columns) != set(_DORMANT):
            raise InputError(f"a slot table has the columns {', '.join(_DORMANT)}; these are {_names(columns)}")
        expected = cls.empty(1, num_slots).columns()
        for name, empty in expected.items():
            given = columns[name]
            if not isinstance(given, Tensor) or _form(given) != _form(empty):
                raise InputError(f"column {name!r} of the slot table must be {empty.dtype} of shape {[1, num_slots]}")
        table = cls(**{name: columns[name].clone() for name in expected})
        table._check_values()
        return table

    def _check_values(self) -> None:
        limits = {"stage": len(Stage) - 1, "alpha": 1, "blueprint": num_blueprints(), "blend": NUM_BLENDS - 1}
        limits |= dict.fromkeys(_COUNTS, _MOST)
        for name, most in limits.items():
            column = getattr(self, name)
            if not ((column >= 0) & (column <= most)).all():
                raise InputError(
                    f"column {name!r} of the slot table must be 0 to {most}; got {column.flatten().tolist()}"
                )
        if not torch.equal(self.occupied, self.blueprint != NO_BLUEPRINT):
            raise InputError("the slot table names blueprints for empty slots, or none for occupied ones")

    @property
    def shape(self) -> torch.Size:
        return self.stage.shape

    @property
    def occupied(self) -> Tensor:
        """`[N, S]` bool: the slot holds a seed."""
        return torch.isin(self.stage, _OCCUPIED_CODES)

    @property
    def on_trial(self) -> Tensor:
        """`[N, S]` bool: the slot holds a seed that is not kept for good."""
        return self.occupied & (self.stage != Stage.FOSSILIZED)

    @property
    def isolated(self) -> Tensor:
        """`[N, S]` bool: the slot holds a seed at alpha 0, which learns without touching its host."""
        return self.occupied & (self.alpha == 0)

    @property
    def blended(self) -> Tensor:
        """`[N, S]` bool: the slot holds a seed that takes part in the host's output."""
        return self.occupied & (self.alpha > 0)

    @property
    def must_learn(self) -> Tensor:
        """`[N, S]` bool: seeds that go on only with a gradient: in TRAINING, and instant ones in their first epoch."""
        return (self.stage == Stage.TRAINING) | ((self.stage == Stage.GERMINATED) & self.blended)

    @property
    def added_params(self) -> Tensor:
        """`[N]`: parameters that all seeds of a host add."""
        return self.params.sum(1)

    def clone(self) -> Self:
        return type(self)(**{name: column.clone() for name, column in self.columns().items()})

    def select(self, hosts: slice | Tensor) -> Self:
        return type(self)(**{name: column[hosts] for name, column in self.columns().items()})

    def where(self, hosts: Tensor, other: Self) -> Self:
        """This table for `hosts [N]` (bool), `other` for the rest."""
        pairs = zip(self.columns().items(), other.columns().values(), strict=True)
        return type(self)(**{name: torch.where(hosts[:, None], mine, theirs) for (name, mine), theirs in pairs})

    def columns(self) -> dict[str, Tensor]:
        return {spec.name: getattr(self, spec.name) for spec in fields(self)}

    def clear(self, where: Tensor) -> None:
        """Forget the seeds in the slots `where [N, S]`; their stage and its age stay."""
        for name, value in _DORMANT.items():
            if name not in ("stage", "epochs_in_stage"):
                getattr(self, name)[where] = value

    def equals(self, other: Self) -> bool:
        """Whether both tables hold the same values, unmeasured ones included."""
        pairs = zip(self.columns().values(), other.columns().values(), strict=True)
        return all(torch.equal(a.nan_to_num(1e30), b.nan_to_num(1e30)) for a, b in pairs)


_DORMANT: dict[str, Any] = {
    "stage": Stage.DORMANT.value,
    "alpha": 0.0,
    "blueprint": NO_BLUEPRINT,
    "blend": 0,
    "epochs_in_stage": 0,
    "blend_epoch": 0,
    "pauses": 0,
    "holds": 0,
    "healthy": True,
    "measurements": 0,
    "proven": False,
    "contribution": NOT_MEASURED,
    "score_at_germination": NOT_MEASURED,
    "improvement": NOT_MEASURED,
    "seed_grad_norm": NOT_MEASURED,
    "params": 0,
}
"""What every column holds for an empty slot; the types of these values set the types of the columns."""


def _form(column: Tensor) -> tuple[torch.Size, torch.dtype, torch.layout]:
    return column.shape, column.dtype, column.layout


def _names(columns: object) -> str:
    return ", ".join(map(str, columns)) if isinstance(columns, Mapping) else f"a {type(columns).__name__}"
