"""What a factored action is made of: heads, the head that decides, and when each of the others matters.

One head, the *decider*, is drawn first. Every other head matters only for some of its values; where it does not
matter it stores index 0 and counts nowhere. The mask of a head may depend on the value drawn for one earlier head.

| head (Esper) | matters for | mask | depends on |
|---|---|---|---|
| op | always: it decides | `[..., O]` | nothing |
| slot | every op but WAIT | `[..., O, S]` | op |
| blueprint | GERMINATE | `[..., S, B]` | slot |
| blend | GERMINATE | `[..., L]` | nothing |
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache, cached_property
from typing import Any, Self

import torch
from torch import Tensor

from esper.kasmina import num_blueprints
from esper.leyline import HEAD_NAMES, NUM_BLENDS, NUM_OPS, InputError, Op, SlotConfig, unknown_name
from esper.leyline.checks import check_field_types
from esper.nissa.state_checks import checked_keys, checked_list

Masks = Mapping[str, Tensor]
"""Head name to boolean mask, True where legal: `[..., size]`, or `[..., given size, size]` if it is conditional."""
LARGEST_HEAD = 2**16
"""Actions that a head may have; tables over them are made in advance."""


@dataclass(frozen=True, slots=True)
class Head:
    """One factor of an action."""

    name: str
    size: int
    matters_for: tuple[int, ...] | None = None
    """Values of the decider for which this head counts; None: always."""
    mask_given: str | None = None
    """The head on whose drawn value this head's mask depends; None: on none."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not self.name.isidentifier():
            raise InputError(f"the name of a head must be a plain word, because parameters go by it; got {self.name!r}")


@dataclass(frozen=True)
class ActionSpec:
    """The heads of an action in storage order (the columns of `actions [..., H]`) and which of them decides."""

    heads: tuple[Head, ...]
    decider: str

    def __post_init__(self) -> None:
        check_field_types(self)
        if len(set(self.names)) != len(self.names):
            raise InputError(f"head names repeat: {', '.join(self.names)}")
        if not all(1 <= head.size <= LARGEST_HEAD for head in self.heads):
            raise InputError(f"every head needs 1 to {LARGEST_HEAD} actions")
        decider = self.head(self.decider)
        if decider.matters_for is not None or decider.mask_given is not None:
            raise InputError(f"the deciding head {self.decider!r} always matters and depends on no other head")
        for head in self.heads:
            self._check_relevance(head)
        if len(self.order) != len(self.heads):
            raise InputError("the masks of some heads depend on each other in a circle")

    def _check_relevance(self, head: Head) -> None:
        decisions = range(self.head(self.decider).size)
        relevant = self.relevant_decisions(head)
        if not set(relevant) <= set(decisions):
            raise InputError(f"head {head.name!r} matters for {relevant}; {self.decider!r} has 0..{decisions[-1]}")
        if head.mask_given is not None and not set(relevant) <= set(
            self.relevant_decisions(self.head(head.mask_given))
        ):
            raise InputError(f"head {head.name!r} matters where {head.mask_given!r}, which its mask needs, does not")

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Head indices in the order in which they are drawn: whatever a mask depends on comes first."""
        placed = [self.decider]
        for _ in self.heads:
            placed += [h.name for h in self.heads if h.name not in placed and h.mask_given in (None, *placed)]
        return tuple(self.names.index(name) for name in placed)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Head names in storage order."""
        return tuple(head.name for head in self.heads)

    @cached_property
    def width(self) -> int:
        """Size of the widest head: the K that padded logits `[..., H, K]` share."""
        return max(head.size for head in self.heads)

    @cached_property
    def decider_index(self) -> int:
        """Column of the deciding head."""
        return self.names.index(self.decider)

    def head(self, name: str) -> Head:
        """The head called `name`."""
        for head in self.heads:
            if head.name == name:
                return head
        raise unknown_name("head", name, self.names)

    def relevant_decisions(self, head: Head) -> tuple[int, ...]:
        """The values of the decider for which `head` counts."""
        return tuple(range(self.head(self.decider).size)) if head.matters_for is None else head.matters_for

    def mask_shape(self, head: Head) -> tuple[int, ...]:
        """Shape of one mask of `head`, without batch dimensions."""
        return (head.size,) if head.mask_given is None else (self.head(head.mask_given).size, head.size)

    def all_legal(self, batch: Sequence[int], device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Masks that forbid nothing."""
        return {
            head.name: torch.ones(*batch, *self.mask_shape(head), dtype=torch.bool, device=device)
            for head in self.heads
        }

    def to_dict(self) -> dict[str, Any]:
        """Built-in types only, so that a checkpoint holding it loads with `weights_only=True`."""
        return {"decider": self.decider, "heads": [asdict(head) for head in self.heads]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        parts = checked_keys(data, ("decider", "heads"), "action_spec")
        names = [spec.name for spec in fields(Head)]
        heads = [
            Head(**checked_keys(head, names, f"action_spec.heads.{index}"))
            for index, head in enumerate(checked_list(parts["heads"], "action_spec.heads"))
        ]
        return cls(tuple(heads), parts["decider"])


@cache
def relevance_table(spec: ActionSpec, device: torch.device) -> Tensor:
    """`[decisions, H]`, True where a head matters for that value of the decider."""
    decisions = range(spec.head(spec.decider).size)
    rows = [[decision in spec.relevant_decisions(head) for head in spec.heads] for decision in decisions]
    # Acting is often the first to ask, under inference mode; a tensor made there could never enter autograd.
    with torch.inference_mode(False):
        return torch.tensor(rows, dtype=torch.bool, device=device)


def esper_action_spec(slot_config: SlotConfig) -> ActionSpec:
    """Esper's four heads for the slots of `slot_config` and the blueprints that are registered now."""
    return _esper_action_spec(slot_config, num_blueprints())


@cache
def _esper_action_spec(slot_config: SlotConfig, blueprints: int) -> ActionSpec:
    acts_on_slot = tuple(int(op) for op in Op if op is not Op.WAIT)
    germinates = (int(Op.GERMINATE),)
    heads = {
        "slot": Head("slot", slot_config.num_slots, acts_on_slot, mask_given="op"),
        "blueprint": Head("blueprint", blueprints, germinates, mask_given="slot"),
        "blend": Head("blend", NUM_BLENDS, germinates),
        "op": Head("op", NUM_OPS),
    }
    return ActionSpec(tuple(heads[name] for name in HEAD_NAMES), decider="op")
