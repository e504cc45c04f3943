"""The benchmark of growth: paired rows, honest sizes, intervals that contain the mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.api import Estimate, compare, search_schedules
from esper.leyline import InputError
from esper.tolaria import find_task
from tests.worlds import tiny_task


def quiet(what: str, done: int, total: int) -> None:
    assert 0 <= done < total
    assert what


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20))
def test_intervals_contain_the_mean_and_repeat(values: list[float]) -> None:
    estimate = Estimate.of(values)
    assert estimate.low - 1e-9 <= estimate.mean <= estimate.high + 1e-9
    assert estimate == Estimate.of(values)


def test_rows_are_paired_and_static_networks_as_large_as_the_grown_one() -> None:
    task = tiny_task(episode_length=12)
    rows = compare(task, ["never", "schedule"], [0, 1], quiet)
    never, grown, scratch, wide = rows
    assert [row.name for row in rows[:2]] == ["never", "schedule"]
    assert never.parameters.mean == never.results[0].host_params
    for a, b, c in zip(grown.results, scratch.results, wide.results, strict=True):
        assert b.added_params == a.added_params
        assert c.added_params >= a.added_params
        assert c.host_params == a.host_params
    assert never.gain_over(never).mean == 0.0


def test_a_task_whose_host_has_no_widths_cannot_be_widened() -> None:
    with pytest.raises(InputError, match="does not set the widths"):
        compare(tiny_task(host_settings={"inputs": 6, "classes": 3}, episode_length=8), ["never"], [0], quiet)


def test_the_search_ranks_schedules_and_always_knows_doing_nothing() -> None:
    found = search_schedules([tiny_task(episode_length=8)], 4, 0, quiet)
    assert () in [candidate.plantings for candidate in found]
    assert [c.objective for c in found] == sorted((c.objective for c in found), reverse=True)
    assert found[0].episodes == 8
    again = search_schedules([tiny_task(episode_length=8)], 4, 0, quiet)
    assert found == again


def test_the_default_tasks_can_be_widened() -> None:
    assert all(isinstance(find_task(name).host_settings["channels"], tuple) for name in ("mnist1d", "mnist1d-shuffled"))
