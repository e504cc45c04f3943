"""The layout of observations: columns in the agreed order, each with a name of its own, and as wide as the tensor."""

import pytest
import torch

from esper.kasmina import catalogue_names, num_blueprints
from esper.leyline import POINTS, Op, SlotConfig, rent
from esper.simic.control.features import (
    describe_observation,
    observation_layout,
    observation_width,
    signals_to_features,
)
from esper.tolaria import Population
from tests.catalogues import one_more_kind
from tests.simic.lives import make_situation
from tests.worlds import tiny_task


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
def test_the_width_is_that_of_the_tensor(slots: int) -> None:
    config = SlotConfig.of_size(slots)
    obs = signals_to_features(make_situation(4, slots))
    assert obs.shape == (4, observation_width(config))
    per_slot = (4 + num_blueprints()) + 10 + 4 + (4 + num_blueprints())
    assert observation_width(config) == observation_width(slots) == 23 + 7 + slots * per_slot
    assert obs.dtype == torch.float32


def test_three_slots_begin_with_the_columns_that_were_agreed() -> None:
    blocks = [placed.block for placed in observation_layout(3)]
    agreed = ["host"] * 23 + ["slot"] * 3 * (4 + num_blueprints()) + ["telemetry"] * 30
    assert blocks[: len(agreed)] == agreed
    assert not {"host", "slot", "telemetry"} & set(blocks[len(agreed) :])


def test_column_names_are_unique() -> None:
    names = [placed.name for placed in observation_layout(3)]
    assert len(set(names)) == len(names)
    assert {"host.epoch", "r0c1.telemetry.alpha", "economy.price", "r0c2.economy.offer_5"} <= set(names)


def test_a_kind_more_gets_a_column_and_an_offer_in_every_slot() -> None:
    before = observation_width(2)
    with one_more_kind() as kind:
        population = Population(tiny_task(), 2, executor="loop")
        population.start([0, 1])
        population.step(torch.tensor([[0, kind.id - 1, 0, Op.GERMINATE], [0, 0, 0, Op.WAIT]]))
        features = signals_to_features(population.situation)
        slots = population.table.shape[1]
        assert features.shape[1] == observation_width(slots)
        assert observation_width(2) == before + 2 * 2 * (num_blueprints() - len(catalogue_names()["conv1d"]))
        grown, other = (describe_observation(row, slots) for row in features)
        assert grown[f"r0c0.slot.blueprint_{kind.id}"] == 1.0
        assert other[f"r0c0.slot.blueprint_{kind.id}"] == 0.0
        owed = rent(float(population.situation.catalogue.params[0, kind.id - 1]), population.host_params, 0.03)
        assert other[f"r0c0.economy.offer_{kind.id}"] == pytest.approx(POINTS * owed / 10)
    assert observation_width(2) == before
