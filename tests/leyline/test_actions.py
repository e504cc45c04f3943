"""Stages and their codes, head names, and actions: dicts in head order, and nothing impossible."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline import HEAD_NAMES, Action, Blend, InputError, Op, Stage


def test_head_names_are_a_tuple_in_storage_order() -> None:
    assert HEAD_NAMES == ("slot", "blueprint", "blend", "op")
    assert isinstance(HEAD_NAMES, tuple)


def test_stage_codes_fill_the_observation_range() -> None:
    assert [stage.value for stage in Stage] == list(range(8))
    assert Stage.BLENDING.value == 3


@given(st.builds(Action, st.sampled_from(Op), st.integers(0, 8), st.integers(0, 20), st.sampled_from(Blend)))
def test_actions_round_trip_through_dicts_in_head_order(action: Action) -> None:
    assert tuple(action.to_dict()) == HEAD_NAMES
    assert Action.from_dict(action.to_dict()) == action


@pytest.mark.parametrize(
    "values",
    [
        {"slot": 0, "blueprint": 0, "blend": 0},
        {"slot": 0, "blueprint": 0, "blend": 0, "op": 9},
        {"slot": -1, "blueprint": 0, "blend": 0, "op": 0},
        {"slot": 0, "blueprint": -1, "blend": 0, "op": 1},
    ],
)
def test_impossible_actions_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(InputError):
        Action.from_dict(values)
