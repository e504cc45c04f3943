"""What a search has learned as a teacher: what decisions cost, what it decides, and what it tries instead."""

import pytest
import torch

from esper.leyline import NUM_BLENDS, Blend, Op
from esper.simic.search import PlanTeacher, TaskFindings, show_plan
from esper.simic.search.plans import BLENDS
from esper.simic.search.values import PlanValues
from esper.tamiyo import Planting
from esper.tolaria import EpisodeSettings, Population
from tests.simic.search.builders import tiny_search
from tests.worlds import tiny_task

WORST = 4.0
GOOD, FAIR = (1, 0), (3, 6)
"""Slot and kind of two plantings that pay."""


def found(**settings: float) -> TaskFindings:
    """Only two plantings pay: 5 and 4 points before rent, at once rather than later, and not linear."""
    space = tiny_search().space
    sizes = space.sizes()
    effects = {name: torch.zeros(size, dtype=torch.float64) for name, size in sizes.items()}
    slots, kinds, moments, _ = space.shape
    place = torch.full((slots, kinds), -10.0, dtype=torch.float64)
    place[GOOD], place[FAIR] = settings.get("good", 5.0), settings.get("fair", 4.0)
    effects["place"] = place.flatten()
    effects["moment"] = -torch.arange(moments).double()
    effects["blend"] = torch.tensor([0.0, -1.0]).double()
    means = torch.cat(list(effects.values()))
    return TaskFindings("tiny", 50.0, space.host_params, slots, 0, (), (), space, means, {})


def population(price: float = 0.001, hosts: int = 1) -> Population:
    settings = EpisodeSettings(length=9, price=price, merit=False)
    made = Population(tiny_task(), hosts, settings, executor="loop")
    made.start(range(hosts))
    return made


def played(teacher: PlanTeacher, hosts: Population) -> str:
    """What it plants on the first host."""
    teacher.reset(hosts.num_hosts, 0)
    planted = []
    while not hosts.done:
        step, actions = int(hosts.situation.signals.epoch[0]), teacher.decide(hosts.situation)
        assert hosts.situation.masks.allow(actions).all()
        slot, kind, blend, op = actions[0].tolist()
        if op == Op.GERMINATE:
            planted.append(Planting(step, slot, kind, Blend(blend)))
        hosts.step(actions)
    return show_plan(tuple(planted))


def test_it_plants_what_pays_one_after_the_other_and_keeps_it() -> None:
    hosts = population()
    assert played(PlanTeacher(found()), hosts) == "0:1:0:instant 1:3:6:instant"
    assert len(hosts.results(test=False)[0].kept) == 2


def test_it_leaves_out_what_the_price_makes_too_dear() -> None:
    space = found().space
    for price, plan in ((0.001, "0:1:0:instant 1:3:6:instant"), (50.0, "nothing")):
        assert played(PlanTeacher(found()), population(price)) == plan
    assert int(space.params[GOOD]) < int(space.params[FAIR])


def test_regrets_are_what_decisions_lose_against_the_best() -> None:
    findings, hosts = found(), population()
    teacher = PlanTeacher(findings)
    teacher.reset(1, 0)
    teacher.decide(hosts.situation)
    (regrets,) = teacher.regrets
    values = PlanValues(findings.space, findings.effects).planting((), 0, 0.001)
    best = values.max()
    for index, blend in enumerate(BLENDS):
        expected = (best - values[:, :, index]).clamp(max=WORST).float()
        torch.testing.assert_close(regrets.germinate[0, :, :, blend], expected, atol=1e-5, rtol=0)
    untried = [blend for blend in range(NUM_BLENDS) if blend not in BLENDS]
    assert (regrets.germinate[..., untried] == WORST).all()
    assert float(regrets.germinate.min()) == pytest.approx(0.0, abs=1e-6)
    assert 0 < float(regrets.wait[0]) < float(best)
    assert (regrets.fossilize == WORST).all()  # nothing can be kept yet
    assert (regrets.cull == WORST).all()


def test_after_another_planting_it_says_what_is_best_beside_it() -> None:
    teacher, hosts = PlanTeacher(found()), population()
    teacher.reset(1, 0)
    hosts.step(torch.tensor([[2, 3, int(Blend.INSTANT), int(Op.GERMINATE)]]))
    assert teacher.decide(hosts.situation)[0].tolist() == [*GOOD, Blend.INSTANT, Op.GERMINATE]
    hosts.step(torch.tensor([[*GOOD, int(Blend.INSTANT), int(Op.GERMINATE)]]))
    # Two seeds are all that a plan may have: what is held is kept.
    assert teacher.decide(hosts.situation)[0, 3] == Op.FOSSILIZE
    assert (teacher.regrets[-1].germinate == WORST).all()


def test_keeping_costs_nothing_where_nothing_is_left_to_plant_and_waiting_a_little() -> None:
    teacher, hosts = PlanTeacher(found(fair=-10.0)), population()
    teacher.reset(1, 0)
    hosts.step(torch.tensor([[*GOOD, int(Blend.INSTANT), int(Op.GERMINATE)]]))
    teacher.decide(hosts.situation)
    regrets = teacher.regrets[-1]
    assert float(regrets.fossilize[0, GOOD[0]]) == 0.0
    assert float(regrets.wait[0]) == pytest.approx(0.2)


def test_exploration_does_other_things_as_long_as_plantings_may_pay() -> None:
    plans = {played(PlanTeacher(found(), exploration=0.8), population(hosts=1 + seed)) for seed in range(6)}
    assert len(plans) > 2
    same = [played(PlanTeacher(found(), exploration=0.8), population()) for _ in range(2)]
    assert same[0] == same[1]
    # Where nothing may pay there is nothing to try.
    assert played(PlanTeacher(found(good=-10.0, fair=-10.0), exploration=1.0), population()) == "nothing"
