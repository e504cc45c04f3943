"""Memory of a long run: what episodes use is given back."""

import gc
import os
from pathlib import Path

import pytest

from esper.tamiyo import Random
from esper.tolaria import EpisodeSettings, Population
from tests.worlds import tiny_task

_STATM = Path("/proc/self/statm")
_HOSTS, _ROUNDS, _LENGTH = 20, 50, 8


def resident_megabytes() -> float:
    gc.collect()
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.slow
@pytest.mark.skipif(not _STATM.exists(), reason="needs Linux's account of resident memory")
@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_a_thousand_host_episodes_keep_memory_flat(executor: str) -> None:
    population = Population(tiny_task(batches_per_epoch=1), _HOSTS, EpisodeSettings(length=_LENGTH), executor=executor)
    dice = Random()
    dice.reset(_HOSTS, 0)
    resident = []
    for episode in range(_ROUNDS):
        population.start(range(episode * _HOSTS, (episode + 1) * _HOSTS))
        while not population.done:
            population.step(dice.decide(population.situation))
        resident.append(resident_megabytes())
    settled = resident[_ROUNDS // 10]  # caches and allocator pools have filled by then
    assert max(resident[_ROUNDS // 10 :]) < 1.05 * settled
    assert resident[-1] > 0.95 * settled
