"""Searches on many tasks: files that go on, and workers that find the same."""

from pathlib import Path
from typing import Any

import pytest

from esper.leyline import DamagedFileError, InputError
from esper.simic.search import SearchJob, SearchSettings, search_tasks
from esper.tolaria import EpisodeSettings

_TASKS = ("digits", "digits@widths=8-8")


def _job(folder: Path, tasks: tuple[str, ...] = _TASKS, **settings: Any) -> SearchJob:
    small: dict[str, Any] = {"episodes": 8, "hosts": 4, "seeds_per_batch": 1, "prices": (0.03,), "finalists": 1}
    episode = EpisodeSettings(length=9, batches_per_epoch=2, merit=False)
    return SearchJob(tasks, folder, SearchSettings(**(small | {"final_seeds": 4} | settings)), episode, "native")


def test_workers_find_what_one_process_finds(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    told: list[tuple[str, int, int]] = []
    alone = list(search_tasks(_job(tmp_path / "one")))
    together = list(search_tasks(_job(tmp_path / "two"), 2, lambda *progress: told.append(progress)))
    assert sorted(together, key=lambda row: row.task) == sorted(alone, key=lambda row: row.task)
    assert {task for task, _, _ in told} == set(_TASKS)
    for task in _TASKS:
        first, second = (_job(tmp_path / name).file(task).read_bytes() for name in ("one", "two"))
        assert first == second


def test_a_search_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    (expected,) = search_tasks(_job(whole, ("digits",)))

    def stop(task: str, done: int, total: int) -> None:
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(search_tasks(_job(cut, ("digits",)), progress=stop))
    begun: list[int] = []
    (resumed,) = search_tasks(_job(cut, ("digits",)), progress=lambda _task, done, _total: begun.append(done))
    assert begun[0] == 4
    assert resumed == expected
    # What has ended is not played again.
    begun.clear()
    (again,) = search_tasks(_job(cut, ("digits",)), progress=lambda _task, done, _total: begun.append(done))
    assert again == expected
    assert begun == [expected.episodes]


def test_a_task_has_one_search_however_its_name_is_written(tmp_path: Path) -> None:
    job = _job(tmp_path)
    assert job.file("mnist1d:seed=7,num_samples=500") == job.file("mnist1d:num_samples=500,seed=7")
    assert job.file("mnist1d:num_samples=500,seed=7") != job.file("mnist1d:num_samples=500,seed=8")


def test_a_search_with_other_settings_is_refused(tmp_path: Path) -> None:
    list(search_tasks(_job(tmp_path, ("digits",))))
    with pytest.raises(InputError, match=r"does not fit this search: settings was .* search in another folder"):
        list(search_tasks(_job(tmp_path, ("digits",), final_seeds=8)))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    job = _job(tmp_path, ("digits",))
    job.file("digits").write_bytes(b"something else")
    with pytest.raises(DamagedFileError, match="is cut short or is no search"):
        list(search_tasks(job))


def test_an_unknown_task_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown task 'nothing'"):
        list(search_tasks(_job(tmp_path, ("digits", "nothing"))))
    assert list(tmp_path.iterdir()) == []
