"""The profiler takes what is there, and writes where it is told."""

import json
import logging
import os
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity

from esper.simic.telemetry import profiled, profiler, profiler_activities

CPU, CUDA, XPU = ProfilerActivity.CPU, ProfilerActivity.CUDA, ProfilerActivity.XPU


@pytest.mark.parametrize(
    ("present", "expected"),
    [((), {CPU}), ((CUDA,), {CPU, CUDA}), ((XPU,), {CPU, XPU}), ((CUDA, XPU), {CPU, CUDA, XPU})],
)
def test_activities_are_what_is_available(
    present: tuple[ProfilerActivity, ...], expected: set[ProfilerActivity], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tuple((activity, lambda activity=activity: activity in present) for activity in (CUDA, XPU))
    monkeypatch.setattr(profiler, "_ACCELERATORS", found)
    monkeypatch.setattr(profiler, "supported_activities", lambda: {CPU, CUDA, XPU})
    assert profiler_activities() == expected


def test_mps_has_no_profiler_and_this_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with caplog.at_level(logging.WARNING):
        assert CPU in profiler_activities()
    assert "no profiler for MPS" in caplog.text


def test_a_trace_of_the_third_round_lands_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with profiled(Path("traces")) as step:
        os.chdir(tmp_path / "elsewhere")
        for _ in range(4):
            torch.ones(3) @ torch.ones(3)
            step()
    (trace,) = (tmp_path / "traces").iterdir()
    assert json.loads(trace.read_text())["traceEvents"]


def test_without_a_folder_nothing_is_profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with profiled(None) as step:
        step()
    assert not list(tmp_path.iterdir())
