"""Exact entropy and KL of the joint action, summed over every branch instead of the one that was sampled.

The joint distribution is a tree: the decider, then each head under the mask that earlier heads leave it. A head's
expected term is averaged over the probability of each branch in which it matters. These numbers are for telemetry;
the update itself uses the sampled branch.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.leyline import MASK_FILL
from esper.simic.control.action_spec import ActionSpec, Head, Masks, relevance_table


def joint_entropy(spec: ActionSpec, logits: Tensor, masks: Masks) -> Tensor:
    """Entropy `[...]` in nats of the joint action; `logits [..., H, K]` padded."""
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
