"""Exact statistics of joint actions: their entropy, and the divergence of two policies."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.leyline import MASK_FILL
from esper.simic.control.action_masks import ActionSpec, Head, Masks, relevance_table


def joint_entropy(spec: ActionSpec, logits: Tensor, masks: Masks) -> Tensor:
    """Entropy `[...]` in nats of the joint action; `logits` padded, conditional or not.

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
    conditional = logits.dim() == masks[spec.decider].dim() + 2
    result = {}
    for index, head in enumerate(spec.heads):
        mask, rows = masks[head.name], logits[..., index, :, :] if conditional else logits[..., index, None, :]
        if head.given is None:
            rows = rows[..., 0, :]
        else:
            rows = rows[..., : spec.head(head.given).size, :]
            mask = mask.unsqueeze(-2) if head.mask_given is None else mask
        result[head.name] = F.log_softmax(rows[..., : head.size].masked_fill(~mask, MASK_FILL), dim=-1)
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
    if head.given is None:
        return value.unsqueeze(-1)
    if head.given == spec.decider:
        return value
    given = spec.head(head.given)
    if given.given is not None:
        value = value.unsqueeze(-2)
    return _given_decision(spec, given, log_probs, (log_probs[given.name].exp() * value).sum(-1))
