"""CPU time of contenders that take turns, so that a busy machine slows all of them."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping

Progress = Callable[[str, int, int], None]
"""Called with what is being run, how many of its parts are done and how many there are."""


def cpu_seconds(run: Callable[[], object]) -> float:
    """CPU time of one call, with garbage collection put off, as `timeit` does."""
    gc.collect()
    gc.disable()
    start = time.process_time()
    run()
    seconds = time.process_time() - start
    gc.enable()
    return seconds


def interleaved_medians(contenders: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """Median of the seconds that each contender reports over `repeats` turns, after one turn to warm up."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, run in contenders.items():
            seconds = run()
            if turn > 0:
                times[name].append(seconds)
    return {name: statistics.median(measured) for name, measured in times.items()}
