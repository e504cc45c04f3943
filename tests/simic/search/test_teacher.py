"""Following what a search found, from wherever a policy has led."""

import torch

from esper.leyline import Blend, Op
from esper.simic.search import PlanTeacher, TaskFindings, show_plan
from esper.simic.search.search import Finalist
from esper.tamiyo import Planting
from esper.tolaria import EpisodeSettings, Population
from tests.simic.search.builders import tiny_search
from tests.worlds import tiny_task

CHEAP = (Planting(0, 1, 0, Blend.INSTANT),)
RICH = (Planting(0, 1, 0, Blend.INSTANT), Planting(2, 3, 6, Blend.INSTANT))


def found(**effects: float) -> TaskFindings:
    """A cheap plan that gains 5 points and a rich one that gains more; effects of kinds by their index."""
    space = tiny_search().space
    means = torch.zeros(len(space.prior()), dtype=torch.float64)
    for kind, effect in effects.items():
        means[int(kind.removeprefix("kind"))] = effect
    finalists = tuple(Finalist(plan, space.added(plan), gain) for plan, gain in (((), 0.0), (CHEAP, 5.0), (RICH, 12.0)))
    return TaskFindings("tiny", 50.0, space.host_params, 4, 0, (), finalists, space, means, {})


def population(price: float) -> Population:
    hosts = Population(tiny_task(), 1, EpisodeSettings(length=9, price=price, merit=False), executor="loop")
    hosts.start([0])
    return hosts


def decide(teacher: PlanTeacher, hosts: Population) -> tuple[int, ...]:
    return tuple(teacher.decide(hosts.situation)[0].tolist())


def plantings(teacher: PlanTeacher, hosts: Population, first: tuple[int, ...] | None = None) -> str:
    """What is planted in an episode in which the teacher decides, from its second step on if the first is given."""
    teacher.reset(1, 0)
    planted = []
    while not hosts.done:
        step = int(hosts.situation.signals.epoch[0])
        slot, kind, blend, op = first if first is not None and step == 0 else decide(teacher, hosts)
        if op == Op.GERMINATE:
            planted.append(Planting(step, slot, kind, Blend(blend)))
        hosts.step(torch.tensor([[slot, kind, blend, op]]))
    return show_plan(tuple(planted))


def test_the_best_finalist_at_the_price_is_followed_and_kept() -> None:
    for price, plan in ((0.001, RICH), (0.5, CHEAP)):
        hosts = population(price)
        assert plantings(PlanTeacher(found()), hosts) == show_plan(plan)
        assert len(hosts.results(test=False)[0].kept) == len(plan)


def test_a_policy_that_was_late_is_told_what_is_still_to_be_planted() -> None:
    assert plantings(PlanTeacher(found()), population(0.001), first=(0, 0, 0, Op.WAIT)) == (
        "1:1:0:instant 2:3:6:instant"
    )


def test_after_another_planting_the_model_says_what_pays_beside_it() -> None:
    other = (2, 5, int(Blend.INSTANT), int(Op.GERMINATE))
    nothing_more = plantings(PlanTeacher(found(kind5=1.0)), population(0.001), first=other)
    assert nothing_more != show_plan((Planting(0, 2, 5, Blend.INSTANT),))
    # Whatever else there is costs more than it brings.
    dear = found(**{f"kind{kind}": -50.0 for kind in range(9)})
    assert plantings(PlanTeacher(dear), population(0.001), first=other) == "0:2:5:instant"


def test_nothing_is_planted_after_the_last_moment() -> None:
    teacher, hosts = PlanTeacher(found()), population(0.001)
    teacher.reset(1, 0)
    late = found().space.last_step + 1
    for _ in range(late):
        hosts.step(torch.zeros(1, 4, dtype=torch.int64))
    assert decide(teacher, hosts) == (0, 0, 0, 0)
