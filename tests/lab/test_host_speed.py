"""A case of the speed benchmark that has no time is skipped with a note."""

from dataclasses import replace

from esper_lab.host_speed import bench_host_steps
from esper_lab.workload import quick_settings


def no_progress(what: str, done: int, total: int) -> None:
    pass


def test_a_case_without_time_is_skipped_and_named() -> None:
    report = bench_host_steps(replace(quick_settings(4), hosts=("mlp",), nums=(4,), case_seconds=0.0), no_progress)
    assert report["host_steps_per_second"]["mlp"] == {name: {} for name in ("bare", "loop", "stacked", "native")}
    assert "4 x mlp was skipped" in report["notes"][0]
