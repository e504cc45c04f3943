"""How seeds join a user's model: at once, or alpha by alpha, each tried on `evaluate` before it is taken."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import esper
from esper.kasmina import take_snapshot
from esper.kasmina.slot import SlotMode
from esper.leyline import Blend, EventType, InputError, Stage
from esper.nissa import Hub, MemorySink
from tests.api.growing.builders import (
    WAIT,
    Script,
    assert_same,
    fossilize,
    germinate,
    grow,
    make_data,
    make_grower,
    make_mlp,
    train,
)

INSTANT = germinate(0, blend=Blend.INSTANT)


def grower_that_scores(value: float, tried: float, **settings: Any) -> esper.Grower:
    """A grower of one linear seed, whose evaluate returns `tried` while an alpha is higher than it should be."""
    place: dict[str, esper.Grower] = {}

    def evaluate() -> float:
        if "grower" not in place:
            return value
        slot, table = place["grower"].grafted.growth.slot_list()[0], place["grower"].grafted.table
        return tried if slot.alpha > table.alpha[0, 0] else value

    place["grower"] = make_grower(controller=Script([germinate(0)]), evaluate=evaluate, **settings)
    return place["grower"]


def test_an_instant_life_is_told_in_sentences() -> None:
    grower = make_grower(controller=Script([INSTANT, WAIT, fossilize(0)]))
    told = [str(decision) for decision in grow(grower, 3)]
    assert told[0].startswith("germinated mlp in 1: +304 parameters, +544 FLOPs (")
    assert told[1].endswith("; mlp in 1 is blended in")
    assert told[2].startswith("kept mlp in 1 for good: it brings ")
    x, _ = make_data()
    torch.testing.assert_close(grower.export()(x), grower.model.eval()(x), rtol=0, atol=1e-5)


def test_the_heuristic_grows_a_model_with_instant_seeds_alone() -> None:
    torch.manual_seed(0)
    x = torch.randn(600, 6)
    y = (x[:, :2].prod(1) > 0).long()
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    def accuracy(network: nn.Module) -> float:
        with torch.no_grad():
            return float((network(x[300:]).argmax(-1) == y[300:]).float().mean())

    grower = make_grower(
        model=model, optimizer=optimizer, at=["1"], evaluate=accuracy, controller="heuristic", price=0.001
    )
    for _ in range(12):
        for _ in range(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(grower.model(x[:300]), y[:300]).backward()
            optimizer.step()
        grower.step()
    grower.finish()
    stages = grower.grafted.table.stage[0].tolist()
    assert stages == [Stage.FOSSILIZED]
    assert accuracy(grower.export().eval()) == accuracy(grower.model.eval())


@pytest.mark.parametrize("epochs", [1, 2], ids=["in its first epoch", "while it holds"])
def test_a_growth_killed_in_the_life_of_an_instant_seed_goes_on_bit_for_bit(epochs: int, tmp_path: Path) -> None:
    def start() -> esper.Grower:
        torch.manual_seed(5)
        return make_grower(model=make_mlp(), controller=Script([INSTANT, WAIT, WAIT, fossilize(0)]))

    grower = start()
    grow(grower, epochs)
    train(grower, steps=1)
    grower.save(tmp_path / "growth.pt")
    expected = [str(decision) for decision in grow(grower, 4)]
    resumed = start()
    resumed.load(tmp_path / "growth.pt")
    assert [str(decision) for decision in grow(resumed, 4)] == expected
    one, other = take_snapshot(resumed.grafted), take_snapshot(grower.grafted)
    assert one.table.equals(other.table)
    assert_same(one.tensors, other.tensors)


def test_a_failed_first_epoch_takes_an_instant_seed_back() -> None:
    values = iter([0.5, 0.5, math.nan, 0.5])
    grower = make_grower(controller=Script([INSTANT]), evaluate=lambda: next(values))
    grow(grower, 1)
    before = take_snapshot(grower.grafted)
    assert int(before.table.stage[0, 0]) == Stage.GERMINATED
    assert grow(grower, 1)[0].rolled_back is not None
    assert grower.grafted.slot("1").stage is Stage.DORMANT
    assert grow(grower, 1)[0].rolled_back is None


def test_an_instant_seed_that_gets_no_gradient_is_an_error_that_says_what_to_do() -> None:
    grower = make_grower(controller=Script([INSTANT]))
    grow(grower, 1)
    for parameter in grower.grafted.slots.parameters():
        parameter.requires_grad_(False)
    train(grower)
    with pytest.raises(InputError, match="the seed behind '1' got no gradient"):
        grower.step()


@pytest.mark.parametrize("blend", [Blend.INSTANT, Blend.LINEAR])
def test_a_seed_that_did_not_learn_is_said_to_have_been_culled_for_that(blend: Blend) -> None:
    memory = MemorySink()
    grower = make_grower(controller=Script([germinate(0, blend=blend)]), hub=Hub([memory]))
    for _ in range(2 if blend is Blend.INSTANT else 3):
        train(grower, forward=lambda x: 0.0 * grower.model(x))
        decision = grower.step()
    assert str(decision).endswith("; mlp in 1 did not learn and was culled")
    assert memory.events[-1].payload["reason"] == "it did not learn"


def test_an_alpha_that_costs_too_much_is_told_until_the_seed_is_culled() -> None:
    memory = MemorySink()
    grower = grower_that_scores(0.5, tried=0.3, hub=Hub([memory]))
    told = [decision.moved for decision in grow(grower, 5)]
    slot = grower.grafted.growth.slot_list()[0]
    holds = ("alpha of mlp in 1 holds: 0.33 would cost 20.0 points",)
    assert told == [(), (), holds, holds, ("mlp in 1 would have cost more than a point three times and was culled",)]
    assert slot.seed is None
    held = [event.payload for event in memory.events if event.event_type is EventType.ALPHA_HELD]
    assert [(event["holds"], event["alpha"], event["blueprint"]) for event in held] == [
        (1, 0.0, "mlp"),
        (2, 0.0, "mlp"),
    ]
    assert [(event["cost"], event["next_alpha"]) for event in held] == [(pytest.approx(0.2), pytest.approx(1 / 3))] * 2
    assert memory.events[-1].payload["reason"] == "it would have cost more than a point three times"


def test_a_trial_leaves_an_isolated_seed_isolated() -> None:
    grower = grower_that_scores(0.5, tried=0.3)
    grow(grower, 3)
    slot = grower.grafted.growth.slot_list()[0]
    assert slot.mode is SlotMode.ISOLATED
    assert float(slot.alpha) == 0.0


@pytest.mark.parametrize(
    ("settings", "tried", "cost"),
    [
        ({}, 0.48, 2.0),
        ({}, math.nan, 100.0),
        ({"measure": "loss"}, 0.525, 100 * math.log(0.525 / 0.5)),
        ({"measure": "loss"}, math.inf, 100.0),
    ],
)
def test_what_a_trial_costs_is_in_units_of_rent_whatever_the_measure(
    settings: dict[str, Any], tried: float, cost: float
) -> None:
    (clause,) = grow(grower_that_scores(0.5, tried, **settings), 3)[-1].moved
    assert clause == f"alpha of mlp in 1 holds: 0.33 would cost {cost:.1f} points"


@pytest.mark.parametrize(("settings", "tried"), [({}, 0.49), ({}, 0.7), ({"measure": "loss"}, 0.45)])
def test_an_alpha_that_costs_little_or_helps_is_taken(settings: dict[str, Any], tried: float) -> None:
    (clause,) = grow(grower_that_scores(0.5, tried, **settings), 3)[-1].moved
    assert clause == "mlp in 1 has learned and begins to blend in"


def test_evaluate_sees_the_seed_at_the_alpha_that_comes_next() -> None:
    seen: list[float] = []

    def evaluate(model: nn.Module) -> float:
        with torch.no_grad():
            seen.append(float(model(make_data(1)[0]).sum()))
        return 0.5

    grower = make_grower(controller=Script([germinate(0)]), evaluate=evaluate)
    grow(grower, 3)
    train(grower)
    now, none, more = (_output_at(grower, alpha) for alpha in (1 / 3, 0.0, 2 / 3))
    seen.clear()
    grower.step()
    assert seen == pytest.approx([now, none, more], rel=1e-5)
    assert len({round(value, 4) for value in seen}) == 3


def _output_at(grower: esper.Grower, alpha: float) -> float:
    with torch.no_grad(), grower.grafted.override_alpha("1", alpha):
        return float(grower.model(make_data(1)[0]).sum())
