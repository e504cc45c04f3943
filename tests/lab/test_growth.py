"""The benchmark of growth: paired rows, honest sizes, schedules in order."""

import pytest

from esper.kasmina import build_host
from esper.leyline import InputError
from esper.tamiyo import Never, Planting, Schedule, run_episode
from esper.tasks import HostSettings, Task, find_task
from esper.tolaria import EpisodeSettings
from esper_lab.growth import compare, run_from_scratch, search_schedules, widenings
from tests.worlds import tiny_task


def quiet(what: str, done: int, total: int) -> None:
    assert 0 <= done < total
    assert what


def test_rows_are_paired_and_static_networks_as_large_as_the_grown_one() -> None:
    task = tiny_task(episode_length=12)
    rows = compare(task, ["never", "schedule"], [0, 1], quiet, EpisodeSettings(price=0.001), 2)
    never, _, grown, scratch, wide, single = rows
    names = ["never", "schedule", "heuristic from epoch 2 on", "same architecture from scratch", "all layers widened"]
    assert [row.name for row in rows[:5]] == names
    assert single.name.startswith("layer ")
    assert never.parameters.mean == never.results[0].host_params
    assert grown.parameters.mean > never.parameters.mean
    for a, b, *widened in zip(*(row.results for row in (grown, scratch, wide, single)), strict=True):
        assert b.kept == a.kept
        for c in widened:
            assert c.added_params >= a.added_params
            assert c.host_params == a.host_params
    assert never.gain_over(never).mean == 0.0


def test_the_same_seed_gives_every_row_what_it_gives_alone() -> None:
    task = tiny_task(episode_length=8)
    grown = [run_episode(task, Schedule([Planting(0, seed % 2, 3)]), seed) for seed in (4, 5, 6)]
    assert len({result.kept for result in grown}) == 2
    scratch = run_from_scratch(task, grown, [4, 5, 6])
    for seed, result, own in zip((4, 5, 6), scratch, grown, strict=True):
        fossils = {kept.slot_id: kept.blueprint for kept in own.kept}
        assert result.test_score == pytest.approx(run_episode(task, Never(), seed, fossils=fossils).test_score)


@pytest.mark.parametrize("name", ["mnist1d", "mnist1d-mlp", "text"])
def test_widened_hosts_have_the_least_width_that_suffices(name: str) -> None:
    task = find_task(name)
    size = _size(task, task.host_settings)
    assert {_size(task, settings) for settings in widenings(task, 0).values()} == {size}
    for settings in widenings(task, size + 1).values():
        assert size < _size(task, settings) < 1.5 * size


def _size(task: Task, settings: HostSettings) -> int:
    return sum(p.numel() for p in build_host(task.host, **settings).parameters())


def test_a_task_whose_host_has_no_widths_cannot_be_widened() -> None:
    with pytest.raises(InputError, match="does not set the widths"):
        compare(
            tiny_task(host_settings={"inputs": 6, "classes": 3}, episode_length=8),
            ["never"],
            [0],
            quiet,
            EpisodeSettings(),
            2,
        )


def test_the_search_ranks_schedules_and_always_knows_doing_nothing() -> None:
    found = search_schedules([tiny_task(episode_length=8)], 4, 0, quiet)
    assert () in [candidate.plantings for candidate in found]
    assert [c.objective for c in found] == sorted((c.objective for c in found), reverse=True)
    assert found[0].episodes == 8
    again = search_schedules([tiny_task(episode_length=8)], 4, 0, quiet)
    assert found == again


def test_the_default_tasks_can_be_widened() -> None:
    assert all(isinstance(find_task(name).host_settings["channels"], tuple) for name in ("mnist1d", "mnist1d-shuffled"))
