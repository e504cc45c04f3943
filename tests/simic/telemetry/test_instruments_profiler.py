"""The profiler takes what is there, and writes where it is told."""

import json
import logging
import os
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, record_function

from esper.leyline import InputError
from esper.simic.telemetry import instruments, prepare_profile, profiled, profiler_activities

CPU, CUDA, XPU = ProfilerActivity.CPU, ProfilerActivity.CUDA, ProfilerActivity.XPU


@pytest.mark.parametrize(
    ("present", "expected"),
    [((), {CPU}), ((CUDA,), {CPU, CUDA}), ((XPU,), {CPU, XPU}), ((CUDA, XPU), {CPU, CUDA, XPU})],
)
def test_activities_are_what_is_available(
    present: tuple[ProfilerActivity, ...], expected: set[ProfilerActivity], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tuple((activity, lambda activity=activity: activity in present) for activity in (CUDA, XPU))
    monkeypatch.setattr(instruments, "_ACCELERATORS", found)
    monkeypatch.setattr(instruments, "supported_activities", lambda: {CPU, CUDA, XPU})
    assert profiler_activities() == expected


def test_mps_has_no_profiler_and_this_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with caplog.at_level(logging.WARNING):
        assert CPU in profiler_activities()
    assert "no profiler for MPS" in caplog.text


@pytest.mark.parametrize(("played", "rounds", "recorded"), [(0, 4, 3), (0, 2, 2), (7, 1, 8), (7, 3, 10)])
def test_a_trace_of_the_third_round_or_the_last_lands_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, played: int, rounds: int, recorded: int
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    prepare_profile(Path("traces"))
    with profiled(Path("traces"), played, rounds) as end_round:
        os.chdir(tmp_path / "elsewhere")
        for index in range(rounds):
            with record_function(f"round {played + index + 1}"):
                torch.ones(3) @ torch.ones(3)
            end_round()
    (trace,) = (tmp_path / "traces").iterdir()
    assert trace.name == f"round-{recorded:06d}.json"
    seen = {
        event["name"] for event in json.loads(trace.read_text())["traceEvents"] if event["name"].startswith("round ")
    }
    assert seen == {f"round {recorded}"}


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="traces cannot be written to"):
        prepare_profile(tmp_path / "file" / "traces")


def test_without_a_folder_nothing_is_profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prepare_profile(None)
    with profiled(None, 0, 1) as end_round:
        end_round()
    assert not list(tmp_path.iterdir())
