"""Collections of tasks: each under its canonical name, none in two."""

import pytest

from esper.leyline import InputError
from esper.tasks import HELD_OUT_TASKS, TRAINING_TASKS, VALIDATION_TASKS, expand_collections, find_task, tasks_of

ALL_TASKS = TRAINING_TASKS + VALIDATION_TASKS + HELD_OUT_TASKS


@pytest.mark.parametrize("name", [name for name in ALL_TASKS if not name.startswith("ucr:")])
def test_every_task_of_a_collection_is_there_under_that_name(name: str) -> None:
    assert find_task(name).name == name


def test_no_task_is_in_two_collections() -> None:
    assert len(set(ALL_TASKS)) == len(ALL_TASKS)
    assert tasks_of("training") == TRAINING_TASKS
    assert tasks_of("validation") == VALIDATION_TASKS
    assert tasks_of("held-out") == HELD_OUT_TASKS


def test_names_of_collections_stand_for_their_tasks() -> None:
    first = VALIDATION_TASKS[0]
    assert expand_collections(["digits", first, "validation", "digits"]) == ["digits", *VALIDATION_TASKS]


def test_an_unknown_collection_is_refused() -> None:
    with pytest.raises(
        InputError, match="unknown collection of tasks 'all'; choose one of: training, validation, held-out"
    ):
        tasks_of("all")
