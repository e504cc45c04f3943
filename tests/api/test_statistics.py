"""Means of a few seeds, with intervals."""

from hypothesis import given
from hypothesis import strategies as st

from esper.api import Estimate


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20))
def test_intervals_contain_the_mean_and_repeat(values: list[float]) -> None:
    estimate = Estimate.of(values)
    assert estimate.low - 1e-9 <= estimate.mean <= estimate.high + 1e-9
    assert estimate == Estimate.of(values)
