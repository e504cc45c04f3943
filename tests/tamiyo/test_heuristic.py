"""The heuristic: when it plants, what it keeps and what it culls."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from esper.kasmina.table import MEASUREMENTS_BEFORE_CULL
from esper.leyline import Blend, Op, Stage
from esper.tamiyo import (
    Heuristic,
    HeuristicSettings,
    Never,
    run_episode,
)
from esper.tamiyo.heuristic import best_places
from esper.tolaria import Episode, Population, Situation
from tests.tamiyo.builders import actions_of
from tests.worlds import host_task, slots_of, tiny_task


def test_the_heuristic_waits_for_measurements_that_a_cull_needs() -> None:
    situation = situation_with(contribution=-0.001, epochs_in_stage=9, measurements=MEASUREMENTS_BEFORE_CULL - 1)
    assert decide(situation)[3] == Op.WAIT


def situation_with(**columns: Any) -> Situation:
    """An episode in its sixth epoch whose first slot holds a seed with these table values."""
    episode = Episode(tiny_task(), 0)
    episode.signals.epoch[:] = 6
    episode.signals.score_history[:] = 0.5
    table = episode.model.table
    values = {"stage": Stage.HOLDING.value, "alpha": 1.0, "blueprint": 4, "params": 60, "proven": True}
    values |= {"measurements": MEASUREMENTS_BEFORE_CULL, **columns}
    for name, value in values.items():
        getattr(table, name)[0, 0] = value
    return episode.situation


def decide(situation: Situation, **settings: Any) -> list[int]:
    controller = Heuristic(HeuristicSettings(**settings))
    controller.reset(1, 0)
    chosen: list[int] = controller.decide(situation)[0].tolist()
    return chosen


def test_the_heuristic_keeps_a_seed_that_pays_its_rent() -> None:
    situation = situation_with(contribution=0.5)
    rent = 0.03 * 60 / situation.host_params
    assert decide(situation)[3] == Op.FOSSILIZE
    assert decide(situation_with(contribution=1.01 * rent), margin=1.0)[3] == Op.FOSSILIZE
    assert decide(situation_with(contribution=0.99 * rent), margin=1.0, patience=0)[3] == Op.CULL


def test_the_heuristic_counts_what_flops_cost() -> None:
    situation = replace(situation_with(contribution=0.5), flop_price=0.1)
    owed = float(situation.planted_flops[0, 0]) * 0.1 / situation.host_flops + 0.03 * 60 / situation.host_params
    for factor, op in ((1.01, Op.FOSSILIZE), (0.99, Op.CULL)):
        situation.table.contribution[0, 0] = factor * owed
        assert decide(situation, patience=0)[3] == op
    free = dormant(6)
    dearest = float(0.03 * free.catalogue.params[:, 3].max() / free.host_params)
    settings: dict[str, Any] = {"order": (3, 1), "max_rent": dearest + 1e-6}
    assert decide(free, **settings)[1] == 3
    assert decide(replace(free, flop_price=10.0), **settings)[3] == Op.WAIT


def test_the_heuristic_gives_a_seed_time_to_earn_its_rent() -> None:
    assert decide(situation_with(contribution=-0.001, epochs_in_stage=1), patience=3)[3] == Op.WAIT
    assert decide(situation_with(contribution=-0.001, epochs_in_stage=3), patience=3)[3] == Op.CULL


@pytest.mark.parametrize("stage", [Stage.TRAINING, Stage.BLENDING, Stage.HOLDING])
def test_the_heuristic_plants_nothing_beside_a_seed_on_trial(stage: Stage) -> None:
    situation = situation_with(stage=stage.value, contribution=0.0, epochs_in_stage=1)
    assert decide(situation, patience=3, more_rent=1.0)[3] == Op.WAIT


def test_the_heuristic_has_no_more_seeds_than_it_is_allowed() -> None:
    situation = situation_with(stage=Stage.FOSSILIZED.value)
    assert decide(situation, max_seeds=1, more_rent=1.0)[3] == Op.WAIT
    assert decide(situation, max_seeds=2, more_rent=1.0)[3] == Op.GERMINATE


def test_the_heuristic_counts_the_rent_of_all_seeds_together() -> None:
    situation = situation_with(stage=Stage.FOSSILIZED.value)
    situation.catalogue.params[:, 6] = 90
    both = 0.03 * (60 + 90) / situation.host_params
    assert decide(situation, more_rent=both + 1e-6, order=(6,))[3] == Op.GERMINATE
    assert decide(situation, more_rent=both - 1e-6, max_rent=1.0, order=(6,))[3] == Op.WAIT


def dormant(epoch: int) -> Situation:
    situation = situation_with(stage=Stage.DORMANT.value, blueprint=0, params=0, alpha=0.0)
    situation.signals.epoch[:] = epoch
    return situation


def test_the_heuristic_leaves_the_host_alone_at_first() -> None:
    settings = {"first_epoch": 1, "features_first_epoch": 3}
    assert decide(dormant(2), **settings)[3] == Op.WAIT  # the host of the tiny task is a network of features
    assert decide(dormant(3), **settings)[3] == Op.GERMINATE
    maps = Population(host_task("conv1d"), 1)
    maps.start([0])
    assert decide(maps.situation, **settings)[3] == Op.WAIT
    maps.signals.epoch[:] = 1
    assert decide(maps.situation, **settings)[3] == Op.GERMINATE


def test_the_heuristic_plants_nothing_when_too_little_of_the_episode_is_left() -> None:
    assert dormant(5).episode_length == 25
    assert decide(dormant(5), time_needed=0.8)[3] == Op.GERMINATE
    assert decide(dormant(6), time_needed=0.8)[3] == Op.WAIT


def test_the_heuristic_begins_at_the_output_of_features_and_in_the_middle_of_maps() -> None:
    last = slots_of(tiny_task()) - 1
    assert decide(dormant(6)) == [last, 6, Blend.INSTANT, Op.GERMINATE]
    maps = Population(host_task("conv1d"), 1)
    maps.start([0])
    assert decide(maps.situation) == [3, 6, Blend.INSTANT, Op.GERMINATE]
    assert best_places(maps.situation) == [3, 2, 4, 1, 5, 0, 6]


def test_the_heuristic_plants_in_sequences_only_if_told_to() -> None:
    sequences = Population(host_task("transformer"), 1)
    sequences.start([0])
    sequences.signals.epoch[:] = 6
    assert decide(sequences.situation)[3] == Op.WAIT
    assert decide(sequences.situation, in_sequences=True)[3] == Op.GERMINATE


def test_the_heuristic_does_not_try_what_costs_more_rent_than_it_allows() -> None:
    situation = dormant(6)
    last = slots_of(tiny_task()) - 1
    rents = (0.03 * situation.catalogue.params[last] / situation.host_params).tolist()
    assert rents[1] < rents[3]
    situation.catalogue.params[:last] = situation.catalogue.params[last]
    assert decide(situation, order=(3, 1), max_rent=rents[3] + 1e-6)[1] == 3
    assert decide(situation, order=(3, 1), max_rent=rents[1] + 1e-6)[1] == 1
    assert decide(situation, order=(3, 1), max_rent=rents[1] - 1e-6)[3] == Op.WAIT
    assert decide(situation, order=(99,))[3] == Op.WAIT  # no such blueprint here


def test_the_heuristic_takes_the_best_place_where_the_rent_is_low_enough() -> None:
    situation = dormant(6)
    situation.catalogue.params[:, 3] = torch.tensor([40, 50, *[90] * (slots_of(tiny_task()) - 2)])
    affordable = 0.03 * 60 / situation.host_params
    assert decide(situation, order=(3,), max_rent=affordable) == [1, 3, Blend.INSTANT, Op.GERMINATE]


def test_the_heuristic_tries_no_kind_twice_and_goes_on_where_it_was() -> None:
    order = (3, 1, 0)
    settings = HeuristicSettings(order=order, patience=0, margin=1e9, max_rent=1.0, time_needed=0.1)
    planted = [row[1] for row in actions_of(Heuristic(settings)) if row[3] == Op.GERMINATE]
    assert planted == list(order)
    first, second = Heuristic(settings), Heuristic(settings)
    first.reset(1, 0)
    first.decide(dormant(6))
    second.reset(1, 0)
    second.load_state_dict(first.state_dict())
    assert second.decide(dormant(6))[0, 1] == 1


def test_growing_helps_on_a_task_made_for_it() -> None:
    never = [run_episode(tiny_task(), Never(), seed).val_score for seed in range(3)]
    grown = [run_episode(tiny_task(), Heuristic(), seed).val_score for seed in range(3)]
    assert sum(grown) >= sum(never) - 0.05
