"""Never, random and schedule: legal, repeatable by seed, and each doing what it says."""

import pytest

from esper.leyline import Blend, InputError, Op
from esper.tamiyo import (
    Never,
    Plans,
    Planting,
    Random,
    Schedule,
    play,
    run_episode,
)
from esper.tolaria import Episode, Population
from tests.tamiyo.builders import actions_of
from tests.worlds import slots_of, tiny_task


def test_never_waits() -> None:
    assert set(map(tuple, actions_of(Never()))) == {(0, 0, 0, 0)}


def test_random_is_repeatable_by_seed_and_uses_every_op() -> None:
    assert actions_of(Random(), 5) == actions_of(Random(), 5)
    assert actions_of(Random(), 5) != actions_of(Random(), 6)
    ops = {row[3] for seed in range(4) for row in actions_of(Random(), seed)}
    assert ops == {op.value for op in Op}


def test_random_draws_only_legal_actions_for_many_hosts() -> None:
    controller = Random()
    controller.reset(1, 0)
    for seed in range(10):
        episode = Episode(tiny_task(), seed)
        for _ in range(12):
            chosen = controller.decide(episode.situation)
            assert episode.situation.masks.allow(chosen).all()
            episode.step(chosen)


def test_a_schedule_plants_on_time_and_keeps_what_it_may() -> None:
    ops = [row[3] for row in actions_of(Schedule([Planting(2, 1, 3)]), seed=2)]  # a host whose alphas never hold
    assert ops[2] == Op.GERMINATE
    assert [step for step, op in enumerate(ops) if op == Op.FOSSILIZE] == [7]


def test_a_schedule_leaves_out_what_is_not_legal() -> None:
    taken = Schedule([Planting(1, 0, 3), Planting(2, 0, 1), Planting(3, 1, 4)])  # occupied slot; attention, no sequence
    ops = [row[3] for row in actions_of(taken)]
    assert ops.count(Op.GERMINATE) == 1


def test_a_schedule_leaves_out_slots_that_a_host_does_not_have() -> None:
    small = tiny_task(host_settings={"inputs": 6, "widths": (4,), "classes": 3})
    assert run_episode(small, Schedule([Planting(1, slots_of(small), 3)]), 0).kept == ()


def test_plantings_are_written_and_read() -> None:
    for planting in (Planting(4, 0, 3), Planting(0, 3, 6, Blend.INSTANT)):
        assert Planting.parse(str(planting)) == planting
    with pytest.raises(InputError, match="unknown blend 'slowly'"):
        Planting.parse("4:0:3:slowly")
    for text in ("4:0", "a:0:3", "4:-1:3", ""):
        with pytest.raises(InputError, match="step:slot:blueprint"):
            Planting.parse(text)


def test_every_host_follows_its_own_plan() -> None:
    population = Population(tiny_task(), 3)
    population.start([5, 5, 5])
    play(population, Plans([[Planting(0, 0, 3, Blend.INSTANT)], [], [Planting(2, 1, 5, Blend.INSTANT)]]), seed=0)
    kept = [[(seed.slot_id, seed.blueprint) for seed in result.kept] for result in population.results()]
    assert kept == [[("r0c0", "mlp")], [], [("r0c1", "far_narrow")]]


def test_plans_are_needed_for_every_host() -> None:
    with pytest.raises(InputError, match="3 hosts need as many plans; got 1"):
        Plans([[]]).reset(3, 0)
