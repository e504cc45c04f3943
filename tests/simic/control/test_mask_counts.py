"""Mask hit rates of scripted decisions."""

import pytest
import torch
from torch import Tensor

from esper.leyline import HEAD_NAMES, Op, SlotConfig
from esper.simic.control import Masks, esper_action_spec, mask_hit_rates, relevant_heads, select_masks

SPEC = esper_action_spec(SlotConfig.of_size(2))


def rates(masks: Masks, actions: Tensor) -> dict[str, float]:
    return mask_hit_rates(SPEC, select_masks(SPEC, masks, actions), relevant_heads(SPEC, actions))


def test_heads_that_did_not_matter_decided_nothing() -> None:
    masks = SPEC.all_legal([3])
    masks["op"][0, Op.CULL] = False
    masks["slot"][1, Op.GERMINATE, 1] = False
    masks["blueprint"][:, 0, 4] = False
    # Host 0 waits, host 1 germinates in slot 0, host 2 culls in slot 1.
    actions = torch.tensor([[0, 0, 0, Op.WAIT], [0, 2, 1, Op.GERMINATE], [1, 0, 0, Op.CULL]])
    assert rates(masks, actions) == pytest.approx({"slot": 0.5, "blueprint": 1.0, "blend": 0.0, "op": 1 / 3})


def test_a_head_that_never_decided_has_rate_zero() -> None:
    found = rates(SPEC.all_legal([2]), torch.zeros(2, 4, dtype=torch.int64))
    assert tuple(found) == HEAD_NAMES
    assert set(found.values()) == {0.0}


def test_steps_of_several_hosts_count_alike() -> None:
    masks = SPEC.all_legal([3, 5])
    masks["op"][:, 0, Op.CULL] = False
    assert rates(masks, torch.zeros(3, 5, 4, dtype=torch.int64))["op"] == pytest.approx(0.2)
