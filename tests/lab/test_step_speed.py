"""The cases of the scaling benchmark are what its table says."""

from esper_lab.step_speed import task_with_slots
from esper_lab.workload import SpeedSettings
from tests.worlds import slots_of


def test_hosts_have_as_many_slots_as_the_table_says() -> None:
    settings = SpeedSettings(repeats=1, batch_size=4)
    assert [slots_of(task_with_slots(settings, slots)) for slots in settings.slots] == list(settings.slots)
