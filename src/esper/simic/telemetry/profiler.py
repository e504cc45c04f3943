"""Profiling a training loop with whatever this machine can profile."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule, supported_activities

_LOG = logging.getLogger(__name__)
_WAIT, _WARM_UP, _ACTIVE = 1, 1, 1
"""Rounds that are left out, that warm the profiler up, and that are recorded."""
_ACCELERATORS: tuple[tuple[ProfilerActivity, Callable[[], bool]], ...] = (
    (ProfilerActivity.CUDA, torch.cuda.is_available),
    (ProfilerActivity.XPU, torch.xpu.is_available),
)


def profiler_activities() -> set[ProfilerActivity]:
    """The CPU, and every accelerator that is here and has a profiler; what has none is said once."""
    supported = supported_activities()
    found = {ProfilerActivity.CPU}
    found |= {activity for activity, available in _ACCELERATORS if activity in supported and available()}
    if torch.backends.mps.is_available():
        _LOG.warning("torch has no profiler for MPS: only what the CPU does is recorded")
    return found


@contextmanager
def profiled(folder: Path | None) -> Iterator[Callable[[], None]]:
    """Profile what runs inside, one step per call of what is given; traces go into `folder`, made on demand.

    One round is recorded, after one that is left out and one that warms up. Open the trace with chrome://tracing or
    Perfetto. Transfers from a device do not block: this waits for the device at the end of each step, and so do not
    compare its times with those of a run without it. None as folder profiles nothing.
    """
    if folder is None:
        yield lambda: None
        return
    target = folder.expanduser().resolve()
    target.mkdir(parents=True, exist_ok=True)

    def save(trace: profile) -> None:
        trace.export_chrome_trace(str(target / f"round-{trace.step_num:06d}.json"))

    plan = schedule(wait=_WAIT, warmup=_WARM_UP, active=_ACTIVE, repeat=1)
    with profile(activities=profiler_activities(), schedule=plan, on_trace_ready=save) as running:

        def step() -> None:
            synchronize()
            running.step()

        yield step


def synchronize() -> None:
    """Wait for the accelerator, if there is one: its work is asynchronous, so times taken without this mean nothing."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elif torch.xpu.is_available():
        torch.xpu.synchronize()
