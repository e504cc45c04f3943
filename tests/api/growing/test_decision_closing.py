"""The end of a growth: nothing is planted that cannot be decided, and what is on trial is decided by what it brings."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import esper
from esper.kasmina import take_snapshot
from esper.leyline import Blend, IllegalActionError, Op, Stage
from tests.api.growing.builders import (
    LIFE,
    WAIT,
    Script,
    assert_same,
    cull,
    fossilize,
    germinate,
    grow,
    make_data,
    make_grower,
    train,
)

X, _ = make_data()


def scored(value_of: Callable[[list[bool]], float]) -> tuple[dict[str, Any], Callable[..., float]]:
    """An `evaluate` whose score depends on which seeds have an effect, and where to put the grower it looks at."""
    place: dict[str, Any] = {}

    def evaluate() -> float:
        slots = place["grower"].grafted.slots if "grower" in place else []
        return value_of([bool(slot.seed is not None and slot.alpha > 0) for slot in slots])

    return place, evaluate


def on_trial(value_of: Callable[[list[bool]], float], epochs: int, *slots: int, **settings: Any) -> esper.Grower:
    """A grower whose seeds were planted one after the other and never decided."""
    place, evaluate = scored(value_of)
    grower = make_grower(controller=Script([germinate(slot) for slot in slots]), evaluate=evaluate, **settings)
    place["grower"] = grower
    grow(grower, epochs)
    return grower


@pytest.mark.parametrize("epochs", [4, 5, 6, 7])
def test_a_seed_that_pays_is_kept_as_it_is_blended(epochs: int) -> None:
    grower = on_trial(lambda effect: 0.9 if any(effect) else 0.2, epochs, 0)
    expected = grower.model(X)
    decisions = grower.finish()
    assert [decision.op for decision in decisions] == [Op.FOSSILIZE]
    assert "kept mlp in 1 for good: it brings +70.0 points" in str(decisions[0])
    assert grower.history[-1] is decisions[0]
    assert torch.equal(grower.model(X), expected)
    plain = grower.export()
    torch.testing.assert_close(plain(X), expected, rtol=0, atol=1e-5)


def test_a_seed_that_does_not_pay_its_rent_goes() -> None:
    grower = on_trial(lambda effect: 0.5 + 0.01 * any(effect), 6, 0)  # its rent is 0.06
    with grower.grafted.override_alpha("1", 0.0):
        expected = grower.model(X)
    decisions = grower.finish()
    assert [(decision.op, decision.slot) for decision in decisions] == [(Op.CULL, "1")]
    assert torch.equal(grower.model(X), expected)
    torch.testing.assert_close(grower.export()(X), expected, rtol=0, atol=1e-6)
    assert grower.finish() == []


def test_what_flops_cost_decides_at_the_end_too() -> None:
    for flop_price, op in ((0.0, Op.FOSSILIZE), (10.0, Op.CULL)):
        grower = on_trial(lambda effect: 0.9 if any(effect) else 0.2, 6, 0, flop_price=flop_price)
        (decision,) = grower.finish()
        assert (decision.op, decision.flops) == (op, 544)
        assert decision.added_flops == (544 if op is Op.FOSSILIZE else 0)


def test_a_seed_without_effect_goes_without_being_measured() -> None:
    grower = on_trial(lambda effect: 0.5, 2, 0)
    assert grower.grafted.slot("1").stage is Stage.TRAINING
    assert [decision.op for decision in grower.finish()] == [Op.CULL]
    assert grower.grafted.slot("1").stage is Stage.DORMANT


def test_of_two_seeds_that_do_the_same_one_is_kept() -> None:
    grower = on_trial(lambda effect: 0.9 if any(effect) else 0.2, 8, 0, 1)
    assert sorted(decision.op for decision in grower.finish()) == [Op.FOSSILIZE, Op.CULL]


def test_kept_seeds_are_not_judged_again() -> None:
    place, evaluate = scored(lambda effect: 0.5)
    grower = make_grower(controller=Script(LIFE), evaluate=evaluate)
    place["grower"] = grower
    grow(grower, 7)
    assert grower.finish() == []
    assert grower.grafted.slot("1").stage is Stage.FOSSILIZED


def test_an_export_decides_for_itself_and_leaves_the_model_as_it_is() -> None:
    grower = on_trial(lambda effect: 0.9 if any(effect) else 0.2, 5, 0)
    before, live = take_snapshot(grower.grafted), grower.model(X)
    with pytest.warns(UserWarning, match=r"still on trial: kept mlp in 1 \(it brings \+70.0 points.*grower.finish"):
        plain = grower.export()
    torch.testing.assert_close(plain(X), live, rtol=0, atol=1e-5)
    after = take_snapshot(grower.grafted)
    assert_same(after.tensors, before.tensors)
    assert after.table.equals(before.table)
    train(grower)
    grower.step()  # and growth goes on


def test_what_cannot_be_decided_in_time_is_not_planted() -> None:
    seen: list[tuple[bool, list[bool]]] = []

    class Watching(Script):
        def decide(self, situation: Any) -> Any:
            masks = situation.masks
            seen.append((bool(masks.op[0, Op.GERMINATE]), masks.blend[0].tolist()))
            return super().decide(situation)

    grower = make_grower(controller=Watching([]), epochs=10)
    grow(grower, 10)
    any_blend, instant_only, none = (True, [True] * 4), (True, [False] * 3 + [True]), (False, [False] * 4)
    assert seen == [any_blend] * 4 + [instant_only] * 4 + [none] * 2


@pytest.mark.parametrize(("blend", "after"), [(Blend.LINEAR, 4), (Blend.SIGMOID, 4), (Blend.INSTANT, 8)])
def test_the_last_seed_that_may_be_planted_can_be_kept_in_the_last_step(blend: Blend, after: int) -> None:
    def script(waits: int) -> Script:
        germination = germinate(0, blend=blend)
        return Script([*[WAIT] * waits, germination, *[WAIT] * (9 - waits - 1), fossilize(0)])

    assert grow(make_grower(controller=script(after - 1), epochs=10), 10)[-1].op is Op.FOSSILIZE
    with pytest.raises(IllegalActionError, match="GERMINATE"):
        grow(make_grower(controller=script(after), epochs=10), 10)


def test_too_few_steps_for_any_seed_are_said_with_what_to_do() -> None:
    with pytest.warns(UserWarning, match="nothing can grow in 2 steps.*2 steps later at the earliest.*several times"):
        make_grower(epochs=2)
    make_grower(epochs=3)


def test_a_real_training_that_stops_in_mid_blend_exports_what_it_scored() -> None:
    torch.manual_seed(0)
    x = torch.randn(400, 6)
    y = (x[:, :3].prod(1) > 0).long()
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    def accuracy(network: nn.Module) -> float:
        with torch.no_grad():
            return float((network(x[200:]).argmax(-1) == y[200:]).float().mean())

    grower = make_grower(model=model, optimizer=optimizer, evaluate=accuracy, at=["1"], controller=Script(LIFE[:1]))
    for _ in range(6):
        for _ in range(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(grower.model(x[:200]), y[:200]).backward()
            optimizer.step()
        grower.step()
    live = accuracy(grower.model.eval())
    grower.finish()
    owed = 0.03 * 304 / sum(p.numel() for p in copy.deepcopy(grower.grafted.host).parameters())
    assert accuracy(grower.export().eval()) >= live - owed - 1e-6


def test_nothing_changes_by_finishing_when_everything_is_decided() -> None:
    grower = make_grower(controller=Script([germinate(0), *LIFE[1:6], cull(0)]))
    grow(grower, 7)
    before = take_snapshot(grower.grafted)
    assert grower.finish() == []
    assert_same(take_snapshot(grower.grafted).tensors, before.tensors)
