"""What the speed benchmark times is what it says."""

from itertools import chain

import pytest
import torch

from esper.kasmina import num_blueprints
from esper.tolaria import LoopExecutor
from esper_lab.workload import BareTrainer, half_planted, host_task, sites_of


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
