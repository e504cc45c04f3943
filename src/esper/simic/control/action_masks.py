"""Factored actions: which heads they have, what is legal, and distributions over them.

One head, the *decider*, is drawn first. Every other head matters only for some of its values; where it does not
matter it stores index 0 and counts nowhere. The mask of a head may depend on the value drawn for one earlier head.

| head (Esper) | matters for | mask | depends on |
|---|---|---|---|
| op | always: it decides | `[..., O]` | nothing |
| slot | every op but WAIT | `[..., O, S]` | op |
| blueprint | GERMINATE | `[..., S, B]` | slot |
| blend | GERMINATE | `[..., L]` | nothing |

Logits and masks of all heads are padded to the widest head, `[..., H, K]`, so that a step costs one log-softmax and
not one distribution object per head. A network may also give *conditional* logits `[..., H, G, K]`, one row for every
value of the head that they are given, of which `select_logits` takes the rows that apply; blend is given the slot too.
A head that does not matter is given a mask with action 0 alone: its log-probability, entropy and every gradient are
then exactly 0, and no later formula needs an exception for it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache, cached_property
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.kasmina import num_blueprints
from esper.leyline import (
    HEAD_NAMES,
    MASK_FILL,
    NUM_BLENDS,
    NUM_OPS,
    InputError,
    InvalidStateMachineError,
    Op,
    SlotConfig,
    unknown_name,
)
from esper.leyline.checks import check_field_types
from esper.nissa.state_files import checked_keys, checked_list

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
    logits_given: str | None = None
    """The head on whose drawn value conditional logits depend; None: the one on which the mask does."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if None not in (self.mask_given, self.logits_given) and self.mask_given != self.logits_given:
            raise InputError(f"mask and logits of head {self.name!r} must be given the same head")
        if not self.name.isidentifier():
            raise InputError(f"the name of a head must be a plain word, because parameters go by it; got {self.name!r}")

    @property
    def given(self) -> str | None:
        """The head that has to be drawn before this one, beside the decider."""
        return self.mask_given or self.logits_given


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
        if decider.matters_for is not None or decider.given is not None:
            raise InputError(f"the deciding head {self.decider!r} always matters and depends on no other head")
        for head in self.heads:
            self._check_relevance(head)
        if len(self.order) != len(self.heads):
            raise InputError("some heads depend on each other in a circle")

    def _check_relevance(self, head: Head) -> None:
        decisions, relevant = range(self.head(self.decider).size), self.relevant_decisions(head)
        if not set(relevant) <= set(decisions):
            raise InputError(f"head {head.name!r} matters for {relevant}; {self.decider!r} has 0..{decisions[-1]}")
        given = self.head(self.decider if head.given is None else head.given)
        if not set(relevant) <= set(self.relevant_decisions(given)):
            raise InputError(f"head {head.name!r} matters where {head.given!r}, which it needs, does not")

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Head indices in the order in which they are drawn: whatever a head depends on comes first."""
        placed = [self.decider]
        for _ in self.heads:
            placed += [h.name for h in self.heads if h.name not in placed and h.given in (None, *placed)]
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
    def given_width(self) -> int:
        """Size of the widest head that another is given: the G of conditional logits `[..., H, G, K]`."""
        return max((self.head(head.given).size for head in self.heads if head.given is not None), default=1)

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
        "blend": Head("blend", NUM_BLENDS, germinates, logits_given="slot"),
        "op": Head("op", NUM_OPS),
    }
    return ActionSpec(tuple(heads[name] for name in HEAD_NAMES), decider="op")


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """`tensor` on `device`, the same one if it is there; nothing waits for a copy towards a device."""
    # A copy to the CPU is waited for: until it is done, what was returned holds anything.
    return tensor.to(device, non_blocking=torch.device(device).type != "cpu")


def move_masks(masks: Masks, device: torch.device | str) -> dict[str, Tensor]:
    return {name: to_device(mask, device) for name, mask in masks.items()}


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _validate_action_mask(mask: Tensor) -> None:
    empty = ~mask.any(-1)
    if empty.any():
        rows = [tuple(row) for row in empty.nonzero().tolist()]
        raise InvalidStateMachineError(f"no legal action in rows {rows} of a mask of shape {tuple(mask.shape)}")


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _validate_logits(logits: Tensor) -> None:
    finite = logits.isfinite().all(-1)
    if not finite.all():
        rows = [tuple(row) for row in (~finite).nonzero().tolist()]
        raise InputError(f"non-finite logits in rows {rows}: the network or its observation holds NaN or infinity")


class MaskedCategorical:
    """Categorical distributions over the last dimension, of which only the actions in `mask` can occur.

    Invalid logits become `MASK_FILL`, which is finite in half precision and whose probability is exactly 0 beside
    any ordinary logit. `validate=False` skips the two checks, which need a host transfer and break compiled graphs.

    | tensor | shape |
    |---|---|
    | logits, mask | `[..., K]` |
    | actions, log_prob, entropy | `[...]` |
    """

    def __init__(self, logits: Tensor, mask: Tensor, *, validate: bool = True) -> None:
        if validate:
            _validate_action_mask(mask)
            _validate_logits(logits)
        self.mask = mask
        self.log_probs = F.log_softmax(logits.masked_fill(~mask, MASK_FILL), dim=-1)

    def sample(self) -> Tensor:
        """Actions by the Gumbel-max trick: one argmax, and never an invalid action whatever the logits are."""
        return _best_legal(self.log_probs.float() + gumbel_noise(self.log_probs), self.mask)

    @property
    def mode(self) -> Tensor:
        """The most probable valid actions."""
        return _best_legal(self.log_probs, self.mask)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probabilities of `actions`."""
        return self.log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Entropies in nats."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def normalized_entropy(self) -> Tensor:
        """Entropies as a share of the most that the mask allows, in [0, 1]; exactly 0 where one action is valid.

        This is the only place where an entropy is normalised.
        """
        valid = self.mask.sum(-1)
        share = self.entropy() / valid.clamp(min=2).to(self.log_probs.dtype).log()
        return torch.where(valid > 1, share, torch.zeros_like(share)).clamp(0.0, 1.0)


def gumbel_noise(like: Tensor) -> Tensor:
    """Standard Gumbel noise in float32, of the shape of `like` and where it is.

    It is drawn on the CPU: a seed then gives the same decisions on every device, and one random state resumes a run.
    """
    return to_device(
        torch.empty_like(like, dtype=torch.float32, device="cpu").exponential_().log_().neg_(), like.device
    )


def _best_legal(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -math.inf).argmax(-1)


def pad_heads(rows: list[Tensor], width: int) -> Tensor:
    """`[..., size]` of each head, stacked to `[..., H, K]`; padding is 0, or False."""
    return torch.stack([F.pad(row, (0, width - row.shape[-1])) for row in rows], dim=-2)


def pad_conditional(spec: ActionSpec, rows: Mapping[str, Tensor]) -> Tensor:
    """`[..., rows, size]` of each head, one row for every value of the head that it is given, as `[..., H, G, K]`."""
    height, width = spec.given_width, spec.width
    padded = [
        F.pad(row, (0, width - row.shape[-1], 0, height - row.shape[-2])) for row in (rows[name] for name in spec.names)
    ]
    return torch.stack(padded, dim=-3)


def by_head(spec: ActionSpec, stacked: Tensor) -> dict[str, Tensor]:
    """The columns of `stacked [..., H]` by head name, in storage order."""
    return dict(zip(spec.names, stacked.unbind(-1), strict=True))


def relevant_heads(spec: ActionSpec, actions: Tensor) -> Tensor:
    """`[..., H]`, True where a head matters for the decision in `actions [..., H]`."""
    return relevance_table(spec, actions.device)[actions[..., spec.decider_index]]


def _mask_row(spec: ActionSpec, head: Head, masks: Masks, chosen: Tensor) -> Tensor:
    """The mask `[..., size]` of `head` that applies once the heads before it are `chosen [..., H]`."""
    mask = masks[head.name]
    if head.mask_given is None:
        return mask
    given = chosen[..., spec.names.index(head.mask_given), None, None]
    return mask.gather(-2, given.expand(*given.shape[:-1], head.size)).squeeze(-2)


def select_masks(spec: ActionSpec, masks: Masks, actions: Tensor) -> Tensor:
    """`[..., H, K]`: what each head could have chosen, given the other heads of `actions [..., H]`.

    Heads that do not matter are left action 0 alone.
    """
    rows = pad_heads([_mask_row(spec, head, masks, actions) for head in spec.heads], spec.width)
    only_first = torch.arange(spec.width, device=rows.device) == 0
    return torch.where(relevant_heads(spec, actions).unsqueeze(-1), rows, only_first)


def select_logits(spec: ActionSpec, logits: Tensor, actions: Tensor) -> Tensor:
    """`[..., H, K]`: the logits of each head, given the other heads of `actions [..., H]`.

    Conditional logits `[..., H, G, K]` have a row for every value of the head that is given; where none is, the first
    row counts. Logits `[..., H, K]` are the same whatever else is chosen.
    """
    if logits.dim() == actions.dim() + 1:
        return logits
    given = _given_columns(spec, logits.device)
    rows = torch.where(given < 0, 0, actions[..., given.clamp(min=0)])[..., None, None]
    return logits.gather(-2, rows.expand(*rows.shape[:-1], logits.shape[-1])).squeeze(-2)


@cache
def _given_columns(spec: ActionSpec, device: torch.device) -> Tensor:
    """`[H]`: the column of the head that each head is given, -1 for those that are given none."""
    columns = [-1 if head.given is None else spec.names.index(head.given) for head in spec.heads]
    with torch.inference_mode(False):
        return torch.tensor(columns, device=device)


def draw_actions(spec: ActionSpec, logits: Tensor, masks: Masks, *, deterministic: bool = False) -> Tensor:
    """Actions `[..., H]` from padded logits, conditional or not: the decider first, then each head under its mask.

    `deterministic` takes the most probable value of each head in turn.
    """
    batch = masks[spec.decider].shape[:-1]
    actions = torch.zeros(*batch, len(spec.heads), dtype=torch.long, device=logits.device)
    noise = 0.0 if deterministic else gumbel_noise(logits.new_empty(*actions.shape, spec.width))
    for index in spec.order:
        head = spec.heads[index]
        scores = (select_logits(spec, logits, actions).float() + noise)[..., index, : head.size]
        actions[..., index] = _best_legal(scores, _mask_row(spec, head, masks, actions))
    return actions * relevant_heads(spec, actions)


def require_fitting(spec: ActionSpec, masks: Masks, envs: int) -> None:
    """Raise if a mask is absent or of another shape than `spec` gives it for so many environments."""
    for head in spec.heads:
        expected = (envs, *spec.mask_shape(head))
        if head.name not in masks or masks[head.name].shape != expected:
            given = tuple(masks[head.name].shape) if head.name in masks else "nothing"
            raise InputError(f"the mask of head {head.name!r} must have shape {expected}; got {given}")


def require_finite(spec: ActionSpec, obs: Tensor, logits: Tensor) -> None:
    """Raise if `logits [N, H, ...]` hold NaN or infinity, and say whether `obs [N, D]` brought it in."""
    finite = logits.isfinite().flatten(2).all(-1)
    if not finite.all():
        env, head = (~finite).nonzero()[0].tolist()
        cause = "its parameters" if obs[env].isfinite().all() else "the observation"
        raise InputError(
            f"the network gives non-finite logits for head {spec.names[head]!r} in environment {env}: "
            f"{cause} must hold no NaN or infinity"
        )


def require_legal(spec: ActionSpec, selected: Tensor, step: int | None = None) -> None:
    """Raise if a head that matters had nothing to choose from; `selected [N, H, K]` as from `select_masks`."""
    empty = ~selected.any(-1)
    if empty.any():
        where = [(env, head) for head in spec.order for env in empty[:, head].nonzero().flatten().tolist()]
        env, head = where[0]
        raise InvalidStateMachineError(
            f"no legal action for head {spec.names[head]!r} in environment {env}"
            + ("" if step is None else f" at step {step}")
            + ": a mask is all False where the head matters"
        )
