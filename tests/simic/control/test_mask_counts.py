"""Mask counters on scripted decisions."""

import pytest
import torch

from esper.leyline import HEAD_NAMES, Op, SlotConfig
from esper.simic.control import MaskCounts, count_masks, esper_action_spec

SPEC = esper_action_spec(SlotConfig.of_size(2))


def test_heads_that_did_not_matter_decided_nothing() -> None:
    masks = SPEC.all_legal([3])
    masks["op"][0, Op.CULL] = False
    masks["slot"][1, Op.GERMINATE, 1] = False
    masks["blueprint"][:, 0, 4] = False
    # Host 0 waits, host 1 germinates in slot 0, host 2 culls in slot 1.
    actions = torch.tensor([[0, 0, 0, Op.WAIT], [0, 2, 1, Op.GERMINATE], [1, 0, 0, Op.CULL]])
    counts = count_masks(SPEC, masks, actions)
    assert dict(zip(counts.names, counts.decisions.tolist(), strict=True)) == {
        "slot": 2,
        "blueprint": 1,
        "blend": 1,
        "op": 3,
    }
    assert counts.rates() == pytest.approx({"slot": 0.5, "blueprint": 1.0, "blend": 0.0, "op": 1 / 3})


def test_batches_add_up_and_an_empty_count_has_rate_zero() -> None:
    masks = SPEC.all_legal([2])
    masks["op"][0, Op.CULL] = False
    waiting = torch.zeros(2, 4, dtype=torch.int64)
    counts = MaskCounts.zero() + count_masks(SPEC, masks, waiting) + count_masks(SPEC, SPEC.all_legal([2]), waiting)
    assert counts.rates() == pytest.approx({"slot": 0.0, "blueprint": 0.0, "blend": 0.0, "op": 0.25})
    assert tuple(MaskCounts.zero().rates()) == HEAD_NAMES


def test_steps_of_several_hosts_count_alike() -> None:
    masks = SPEC.all_legal([3, 5])
    masks["op"][:, 0, Op.CULL] = False
    assert count_masks(SPEC, masks, torch.zeros(3, 5, 4, dtype=torch.int64)).rates()["op"] == pytest.approx(0.2)
