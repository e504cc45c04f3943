"""What an action spec accepts, and the shape of Esper's own."""

import pytest

from esper.kasmina import num_blueprints
from esper.leyline import HEAD_NAMES, NUM_BLENDS, NUM_OPS, InputError, Op, SlotConfig
from esper.simic.control import ActionSpec, Head, esper_action_spec
from tests.catalogues import one_more_kind


@pytest.mark.parametrize("num_slots", [1, 2, 3, 5])
def test_esper_heads_follow_the_slot_config(num_slots: int) -> None:
    spec = esper_action_spec(SlotConfig.of_size(num_slots))
    assert spec.names == HEAD_NAMES
    assert [head.size for head in spec.heads] == [num_slots, num_blueprints(), NUM_BLENDS, NUM_OPS]
    assert spec.mask_shape(spec.head("slot")) == (NUM_OPS, num_slots)
    assert spec.mask_shape(spec.head("blueprint")) == (num_slots, num_blueprints())
    assert [spec.names[index] for index in spec.order] == ["op", "slot", "blueprint", "blend"]


def test_esper_heads_matter_as_the_ops_say() -> None:
    spec = esper_action_spec(SlotConfig.default())
    relevant = {
        op: {head.name for head in spec.heads if op in spec.relevant_decisions(head)} for op in (int(op) for op in Op)
    }
    assert relevant[Op.WAIT] == {"op"}
    assert relevant[Op.GERMINATE] == {"op", "slot", "blueprint", "blend"}
    assert relevant[Op.FOSSILIZE] == relevant[Op.CULL] == {"op", "slot"}


def test_spec_survives_plain_types() -> None:
    spec = esper_action_spec(SlotConfig.of_size(2))
    assert ActionSpec.from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("heads", "decider", "reason"),
    [
        ((Head("a", 2), Head("a", 2)), "a", "repeat"),
        ((Head("a", 0),), "a", "1 to 65536 actions"),
        ((Head("a", 10**12),), "a", "1 to 65536 actions"),
        ((Head("a", 2),), "b", "unknown head"),
        ((Head("a", 2, matters_for=(0,)),), "a", "deciding head"),
        ((Head("a", 2), Head("b", 2, matters_for=(2,))), "a", "matters for"),
        ((Head("a", 2), Head("b", 2, mask_given="c"), Head("c", 2, matters_for=(1,))), "a", "which it needs"),
        ((Head("a", 2), Head("b", 2, mask_given="c"), Head("c", 2, mask_given="b")), "a", "circle"),
    ],
)
def test_impossible_specs_are_refused(heads: tuple[Head, ...], decider: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        ActionSpec(heads, decider)


def test_the_blueprint_head_follows_the_catalogue() -> None:
    before = esper_action_spec(SlotConfig.of_size(2))
    with one_more_kind() as kind:
        after = esper_action_spec(SlotConfig.of_size(2))
        assert after.head("blueprint").size == max(before.head("blueprint").size, kind.id)
        assert after.mask_shape(after.head("blueprint")) == (2, num_blueprints())
    assert esper_action_spec(SlotConfig.of_size(2)) == before
