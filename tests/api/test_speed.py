"""The speed benchmark: what it times is what it says, and what has no time is skipped with a note."""

from dataclasses import replace
from itertools import chain

import pytest
import torch

from esper.api.speed import DEFAULT, QUICK, bench_host_steps
from esper.api.speed.growth import task_with_slots
from esper.api.speed.workload import BareTrainer, half_planted, host_task, sites_of
from esper.kasmina import num_blueprints
from esper.tolaria import LoopExecutor
from tests.worlds import slots_of


def no_progress(what: str, done: int, total: int) -> None:
    pass


def test_half_of_the_slots_are_planted_and_every_fitting_blueprint_is_used() -> None:
    _, catalogue = sites_of(host_task("conv1d", 4, 1))
    table = half_planted(32, catalogue)
    assert float((table.alpha == 1).float().mean()) == 0.5
    for slot, fits in enumerate(catalogue.fits):
        assert set(table.blueprint[:, slot].tolist()) - {0} == set((fits.nonzero().flatten() + 1).tolist())


@pytest.mark.parametrize("host", ["mlp", "conv1d"])
def test_the_bare_network_computes_what_the_grafted_one_does(host: str) -> None:
    task = host_task(host, 4, 1)
    num = 2 * num_blueprints()  # after which every kind has had its turn in every slot
    executor = LoopExecutor(task, num, 1)
    executor.start(range(num), range(num))
    executor.follow(half_planted(num, executor.catalogue))
    x = task.splits().val.x[:8]
    for number in range(num):
        grafted = executor.network(number)
        bare = BareTrainer(task, executor.sites, grafted.table.blueprint[0].tolist())
        own = [list(part.parameters()) for part in (grafted.host, *grafted.slots)]
        own = [parameters for parameters in own if parameters]
        assert [len(parameters) for parameters in bare.clipped] == [len(parameters) for parameters in own]
        assert sum(map(len, own)) == len(list(bare.network.parameters()))
        with torch.no_grad():
            for target, source in zip(chain(*bare.clipped), chain(*own), strict=True):
                target.copy_(source.normal_(std=0.3))
            torch.testing.assert_close(bare.network(x), grafted(x))


def test_hosts_have_as_many_slots_as_the_table_says() -> None:
    assert [slots_of(task_with_slots(QUICK, slots)) for slots in DEFAULT.growth_slots] == list(DEFAULT.growth_slots)


def test_a_case_without_time_is_skipped_and_named() -> None:
    report = bench_host_steps(replace(QUICK, hosts=("mlp",), nums=(4,), case_seconds=0.0), no_progress)
    assert report["host_steps_per_second"]["mlp"] == {"bare": {}, "loop": {}, "stacked": {}}
    assert "4 x mlp was skipped" in report["notes"][0]
