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
not one distribution object per head. A head that does not matter is given a mask with action 0 alone: its
log-probability, entropy and every gradient are then exactly 0, and no later formula needs an exception for it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
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
        decisions, relevant = range(self.head(self.decider).size), self.relevant_decisions(head)
        if not set(relevant) <= set(decisions):
            raise InputError(f"head {head.name!r} matters for {relevant}; {self.decider!r} has 0..{decisions[-1]}")
        given = self.head(self.decider if head.mask_given is None else head.mask_given)
        if not set(relevant) <= set(self.relevant_decisions(given)):
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


def draw_actions(spec: ActionSpec, logits: Tensor, masks: Masks, *, deterministic: bool = False) -> Tensor:
    """Actions `[..., H]` from padded logits `[..., H, K]`: the decider first, then each head under its mask.

    `deterministic` takes the most probable value of each head in turn.
    """
    scores = logits.float() if deterministic else logits.float() + gumbel_noise(logits)
    actions = torch.zeros(logits.shape[:-1], dtype=torch.long, device=logits.device)
    for index in spec.order:
        head = spec.heads[index]
        actions[..., index] = _best_legal(scores[..., index, : head.size], _mask_row(spec, head, masks, actions))
    return actions * relevant_heads(spec, actions)


def require_fitting(spec: ActionSpec, masks: Masks, envs: int) -> None:
    """Raise if a mask is absent or of another shape than `spec` gives it for so many environments."""
    for head in spec.heads:
        expected = (envs, *spec.mask_shape(head))
        if head.name not in masks or masks[head.name].shape != expected:
            given = tuple(masks[head.name].shape) if head.name in masks else "nothing"
            raise InputError(f"the mask of head {head.name!r} must have shape {expected}; got {given}")


def require_finite(spec: ActionSpec, obs: Tensor, logits: Tensor) -> None:
    """Raise if `logits [N, H, K]` hold NaN or infinity, and say whether `obs [N, D]` brought it in."""
    finite = logits.isfinite().all(-1)
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


def joint_entropy(spec: ActionSpec, logits: Tensor, masks: Masks) -> Tensor:
    """Entropy `[...]` in nats of the joint action; `logits [..., H, K]` padded.

    The joint distribution is a tree: the decider, then each head under the mask that earlier heads leave it. A head's
    term is averaged over the probability of each branch in which it matters, where the update uses the sampled branch.
    """
    log_probs = _conditional_log_probs(spec, logits, masks)
    return _expected_sum(spec, log_probs, lambda name: -(log_probs[name].exp() * log_probs[name]).sum(-1))


def joint_kl(spec: ActionSpec, logits: Tensor, other_logits: Tensor, masks: Masks) -> Tensor:
    """KL divergence `[...]` in nats of the joint action, from `logits` to `other_logits` under the same masks."""
    log_p = _conditional_log_probs(spec, logits, masks)
    log_q = _conditional_log_probs(spec, other_logits, masks)
    return _expected_sum(spec, log_p, lambda name: (log_p[name].exp() * (log_p[name] - log_q[name])).sum(-1))


def _conditional_log_probs(spec: ActionSpec, logits: Tensor, masks: Masks) -> dict[str, Tensor]:
    """Per head `[..., size]`, or `[..., given size, size]` with one distribution per value of the given head."""
    result = {}
    for index, head in enumerate(spec.heads):
        head_logits = logits[..., index, : head.size]
        if head.mask_given is not None:
            head_logits = head_logits.unsqueeze(-2)
        result[head.name] = F.log_softmax(head_logits.masked_fill(~masks[head.name], MASK_FILL), dim=-1)
    return result


def _expected_sum(spec: ActionSpec, log_probs: dict[str, Tensor], term: Callable[[str], Tensor]) -> Tensor:
    """The decider's `term` plus, for every other head, its `term` averaged over the branches where it matters."""
    decision_probs = log_probs[spec.decider].exp()
    relevance = relevance_table(spec, decision_probs.device)
    total = term(spec.decider)
    for index, head in enumerate(spec.heads):
        if head.name != spec.decider:
            weight = torch.where(relevance[:, index], decision_probs, 0.0)
            total = total + (weight * _given_decision(spec, head, log_probs, term(head.name))).sum(-1)
    return total


def _given_decision(spec: ActionSpec, head: Head, log_probs: dict[str, Tensor], value: Tensor) -> Tensor:
    """`value`, one per value of the given head, averaged to one per decision: `[..., decisions]`."""
    if head.mask_given is None:
        return value.unsqueeze(-1)
    if head.mask_given == spec.decider:
        return value
    given = spec.head(head.mask_given)
    if given.mask_given is not None:
        value = value.unsqueeze(-2)
    return _given_decision(spec, given, log_probs, (log_probs[given.name].exp() * value).sum(-1))
