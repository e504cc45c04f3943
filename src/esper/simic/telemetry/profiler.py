"""Profiling a training loop with whatever this machine can profile."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule, supported_activities

from esper.leyline import InputError

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


def prepare_profile(folder: Path | None) -> None:
    """Make the folder for traces, if there is to be one, or refuse it before anything runs."""
    if folder is not None:
        try:
            folder.expanduser().mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"traces cannot be written to {folder} ({error.strerror}); name another folder for them"
            ) from None


@contextmanager
def profiled(folder: Path | None, first: int, rounds: int) -> Iterator[Callable[[], None]]:
    """Profile what runs inside, one round per call of what is given; the trace goes into `folder`.

    `first` rounds were played before, and `rounds` are to come. The third of them is recorded, after one that is left
    out and one that warms up; of fewer, the last. Open the trace with chrome://tracing or Perfetto. Transfers from a
    device do not block: this waits for the device at the end of each step, and so do not compare its times with those
    of a run without it. None as folder profiles nothing.
    """
    if folder is None:
        yield lambda: None
        return
    target = folder.expanduser().resolve()

    def save(trace: profile) -> None:
        trace.export_chrome_trace(str(target / f"round-{first + wait + warm_up + _ACTIVE:06d}.json"))

    wait, warm_up = min(_WAIT, max(0, rounds - _WARM_UP - _ACTIVE)), min(_WARM_UP, rounds - _ACTIVE)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Profiler won't be using warmup")  # there is no round to warm up in
        plan = schedule(wait=wait, warmup=warm_up, active=_ACTIVE, repeat=1)
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
