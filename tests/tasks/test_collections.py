"""Collections of tasks: each under its canonical name, none in both."""

import pytest

from esper.leyline import InputError
from esper.tasks import HELD_OUT_TASKS, TRAINING_TASKS, find_task, tasks_of


@pytest.mark.parametrize("name", [name for name in TRAINING_TASKS + HELD_OUT_TASKS if not name.startswith("ucr:")])
def test_every_task_of_a_collection_is_there_under_that_name(name: str) -> None:
    assert find_task(name).name == name


def test_what_is_held_out_is_not_trained_on() -> None:
    assert set(TRAINING_TASKS).isdisjoint(HELD_OUT_TASKS)
    assert tasks_of("training") == TRAINING_TASKS
    assert tasks_of("held-out") == HELD_OUT_TASKS


def test_an_unknown_collection_is_refused() -> None:
    with pytest.raises(InputError, match="unknown collection of tasks 'all'; choose one of: training, held-out"):
        tasks_of("all")
