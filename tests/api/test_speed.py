"""The speed benchmark: what it times is what it says, and what has no time is skipped with a note."""

from dataclasses import replace

import torch

from esper.api.speed import QUICK, bench_host_steps
from esper.api.speed.workload import BareTrainer, half_planted, host_task, sites_of
from esper.tolaria import LoopExecutor


def no_progress(what: str, done: int, total: int) -> None:
    pass


def test_half_of_the_slots_are_planted_and_every_fitting_blueprint_is_used() -> None:
    _, catalogue = sites_of(host_task("conv1d", 4, 1))
    table = half_planted(32, catalogue)
    assert float((table.alpha == 1).float().mean()) == 0.5
    for slot, fits in enumerate(catalogue.fits):
        assert set(table.blueprint[:, slot].tolist()) - {0} == set((fits.nonzero().flatten() + 1).tolist())


def test_the_bare_network_computes_what_the_grafted_one_does() -> None:
    task = host_task("conv1d", 4, 1)
    executor = LoopExecutor(task, 1, 1)
    executor.start([0], [0])
    executor.follow(half_planted(1, executor.catalogue))
    grafted = executor.network(0)
    bare = BareTrainer(task, executor.sites, grafted.table.blueprint[0].tolist())
    parameters = sum(parameter.numel() for parameter in bare.network.parameters())
    assert parameters == sum(parameter.numel() for parameter in grafted.parameters())
    for mine, theirs in zip(bare.clipped, [grafted.host, *grafted.slots], strict=False):
        assert len(mine) == len(list(theirs.parameters())) or not list(theirs.parameters())
    with torch.no_grad():
        own = [p for part in (grafted.host, *grafted.slots) for p in part.parameters()]
        for target, source in zip([p for part in bare.clipped for p in part], own, strict=True):
            target.copy_(source)
    x = task.splits().val.x[:8]
    torch.testing.assert_close(bare.network(x), grafted(x))


def test_a_case_without_time_is_skipped_and_named() -> None:
    report = bench_host_steps(replace(QUICK, hosts=("mlp",), nums=(4,), case_seconds=0.0), no_progress)
    assert report["host_steps_per_second"]["mlp"] == {"bare": {}, "loop": {}, "stacked": {}}
    assert "4 x mlp was skipped" in report["notes"][0]
