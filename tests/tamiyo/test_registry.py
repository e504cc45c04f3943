"""Every registered controller acts legally and plants only what can be decided in time."""

from dataclasses import replace

import pytest
import torch

from esper.kasmina import action_masks
from esper.leyline import InputError, Op
from esper.tamiyo import (
    HeuristicSettings,
    controller_names,
    make_controller,
)
from esper.tolaria import Population
from tests.tamiyo.builders import actions_of
from tests.worlds import tiny_task


@pytest.mark.parametrize("name", controller_names())
def test_every_controller_acts_legally_for_a_whole_episode(name: str) -> None:
    assert len(actions_of(make_controller(name))) == tiny_task().episode_length


def test_unknown_controllers_get_the_list_of_known_ones() -> None:
    with pytest.raises(InputError, match="choose one of: never, random, schedule, heuristic"):
        make_controller("oracle")


@pytest.mark.parametrize("name", ["random", "schedule", "heuristic"])
def test_no_controller_plants_what_cannot_be_decided_in_time(name: str) -> None:
    """Hosts with different numbers of epochs left, some with time for instant seeds alone, some for none."""
    population = Population(tiny_task(), 5, executor="loop")
    population.start(range(5))
    population.signals.epoch[:] = HeuristicSettings().features_first_epoch if name == "heuristic" else 0
    left, catalogue = torch.tensor([0, 1, 2, 5, 6]), population.executor.catalogue
    masks = action_masks(population.table, catalogue, population.budget, left)
    controller = make_controller(name)
    controller.reset(5, 0)
    germinated = torch.zeros(5, dtype=torch.bool)
    for _ in range(20):
        actions = controller.decide(replace(population.situation, masks=masks))
        assert masks.allow(actions).all()
        germinated |= actions[:, 3] == Op.GERMINATE
    assert germinated.tolist() == [False, False, True, True, True]
