"""The two executors: the same lives of the same hosts, by loop and stacked, agree."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from esper.kasmina import NOT_MEASURED, SlotTable, find_blueprint
from esper.leyline import NUM_BLENDS, Blend, InputError, Op, Stage
from esper.tamiyo import Random
from esper.tasks import OptimizerSettings, Task
from esper.tolaria import EpisodeSettings, Population
from esper.tolaria.executors import choice
from tests.worlds import HOST_SETTINGS, host_task, tiny_task

SGD = OptimizerSettings("sgd", lr=5e-2, weight_decay=0.01)


def both(task: Task, num_hosts: int, dtype: torch.dtype, **options: Any) -> tuple[Population, Population]:
    pair = [
        Population(task, num_hosts, EpisodeSettings(what_if=True, **options), executor=name, dtype=dtype)
        for name in ("loop", "stacked")
    ]
    for population in pair:
        population.start(range(num_hosts))
    return pair[0], pair[1]


def differences(loop: Population, stacked: Population) -> float:
    """The largest difference between any weights of any two networks."""
    worst = 0.0
    for host in range(loop.num_hosts):
        pairs = zip(loop.executor.network(host).parameters(), stacked.executor.network(host).parameters(), strict=True)
        worst = max([worst, *(float((a - b).detach().abs().max()) for a, b in pairs)])
    return worst


MEASURED = ("contribution", "score_at_germination", "improvement", "seed_grad_norm")
"""Columns that hold measurements in single precision; the executors may round their last digit differently."""


def assert_same_tables(loop: SlotTable, stacked: SlotTable) -> None:
    """All that the lifecycle decides is the same, and so is which slots were measured; measurements are close."""
    for name, column in loop.columns().items():
        other = stacked.columns()[name]
        if name in MEASURED:
            torch.testing.assert_close(other, column, rtol=1e-6, atol=1e-6, equal_nan=True, msg=name)
        else:
            assert torch.equal(other, column), name


def live(loop: Population, stacked: Population, steps: int, seed: int) -> set[tuple[int, int]]:
    """Random legal lives, the same for both; returns the (slot, blueprint) pairs that were blended."""
    dice = Random()
    dice.reset(loop.num_hosts, seed)
    blended: set[tuple[int, int]] = set()
    for _ in range(steps):
        actions = dice.decide(loop.situation)
        outcomes = [population.step(actions) for population in (loop, stacked)]
        assert torch.equal(outcomes[0].after.table.stage, outcomes[1].after.table.stage)
        for slot in range(loop.table.shape[1]):
            blended |= {(slot, int(b)) for b in loop.table.blueprint[loop.table.alpha[:, slot] > 0, slot]}
        if loop.done:
            break
    return blended


@pytest.mark.parametrize("optimizer", [None, SGD], ids=["adamw", "sgd"])
@pytest.mark.parametrize("host", HOST_SETTINGS)
def test_long_random_lives_agree_in_double_precision(host: str, optimizer: OptimizerSettings | None) -> None:
    task = host_task(host, **({"optimizer": optimizer} if optimizer else {}))
    loop, stacked = both(task, 6, torch.float64)
    blended = live(loop, stacked, task.episode_length, seed=1)
    assert differences(loop, stacked) < 1e-9
    assert len(blended) >= 6
    for a, b in zip(loop.results(), stacked.results(), strict=True):
        assert (a.kept, a.added_params) == (b.kept, b.added_params)
        assert a.test_score == pytest.approx(b.test_score, abs=1e-6)


@pytest.mark.parametrize("host", HOST_SETTINGS)
def test_every_blueprint_lives_its_whole_life_alike(host: str) -> None:
    """One host per pair of slot and blueprint that fits: germinated, trained, blended, kept or culled."""
    task = host_task(host)
    fits = Population(task, 1, executor="loop").executor.catalogue.fits.nonzero().tolist()
    loop, stacked = both(task, len(fits), torch.float64)
    germinate = torch.tensor(
        [[slot, blueprint, index % NUM_BLENDS, Op.GERMINATE] for index, (slot, blueprint) in enumerate(fits)]
    )
    held = False
    for step in range(12):
        actions = germinate if step == 0 else torch.zeros_like(germinate)
        holding = (loop.table.stage == Stage.HOLDING) & loop.table.proven
        for index in holding.any(1).nonzero().flatten().tolist():
            op = Op.FOSSILIZE if index % 2 else Op.CULL
            actions[index] = torch.tensor([fits[index][0], 0, 0, op])
        for population in (loop, stacked):
            population.step(actions)
        assert_same_tables(loop.table, stacked.table)
        assert differences(loop, stacked) < 1e-9
        held |= bool(loop.table.holds.any())
    assert held or task.quality == "loss"  # a trial went against some seed
    stages = set(loop.table.stage.flatten().tolist())
    assert {Stage.FOSSILIZED.value, Stage.DORMANT.value} <= stages


@pytest.mark.parametrize("host", HOST_SETTINGS)
def test_short_lives_agree_in_single_precision(host: str) -> None:
    """With SGD: where a gradient is zero but for rounding, AdamW would step by the whole learning rate either way."""
    loop, stacked = both(host_task(host, optimizer=SGD), 4, torch.float32)
    live(loop, stacked, 6, seed=2)  # 12 optimiser steps
    assert differences(loop, stacked) < 1e-5


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10_000), num_hosts=st.integers(1, 5), steps=st.integers(1, 12))
def test_any_life_of_any_number_of_hosts_agrees(seed: int, num_hosts: int, steps: int) -> None:
    loop, stacked = both(host_task("conv1d"), num_hosts, torch.float64)
    live(loop, stacked, steps, seed)
    assert differences(loop, stacked) < 1e-9
    assert_same_tables(loop.table, stacked.table)


def test_measurements_agree_with_leaving_each_seed_out() -> None:
    loop, stacked = both(host_task("conv1d"), 6, torch.float64)
    live(loop, stacked, 9, seed=3)
    split = loop.task.splits().val
    # Any alpha can be tried of any seed, not only the one that comes next.
    alphas = torch.rand(loop.table.shape, generator=torch.Generator().manual_seed(0))
    trials = torch.where(loop.table.occupied, alphas, torch.nan)
    a, b = (population.executor.measure(split, what_if=True, trials=trials) for population in (loop, stacked))
    assert (~a.contributions.isnan()).sum() > 3
    assert (~a.prospects.isnan()).any()
    assert torch.equal(a.trials.isnan(), trials.isnan())
    pairs = ((a.contributions, b.contributions), (a.prospects, b.prospects), (a.trials, b.trials))
    for mine, other in pairs:
        assert torch.equal(mine.isnan(), other.isnan())
        assert torch.allclose(mine.nan_to_num(), other.nan_to_num(), atol=1e-6)
    assert torch.allclose(a.loss, b.loss, atol=1e-6)


@pytest.mark.parametrize("host", ["mlp", "transformer"])
def test_an_alpha_that_breaks_the_network_costs_all_of_its_score(host: str) -> None:
    pair = both(host_task(host), 1, torch.float64)
    trials = torch.full_like(pair[0].table.alpha, torch.nan)
    trials[0, 0] = 1 / 3
    for population in pair:
        population.step(torch.tensor([[0, 3, 0, Op.GERMINATE]]))
        with torch.no_grad():
            if population is pair[0]:
                next(population.executor.network(0).slots[0].parameters()).fill_(torch.nan)
            else:
                population.executor._now.seeds[0, 4].weights.fill_(torch.nan)  # type: ignore[attr-defined]
        measured = population.executor.measure(population.task.splits().val, trials=trials)
        assert measured.score.isfinite().all()
        assert torch.equal(measured.trials[:, 0], -measured.score)


@pytest.mark.parametrize("host", ["mlp", "conv1d"])
def test_what_a_branch_reads_is_without_the_seed_that_is_left_out(host: str) -> None:
    sizes: dict[str, Any] = {"mlp": {"inputs": 6, "widths": (4, 4, 4)}, "conv1d": {"channels": (4, 5, 6)}}
    task = tiny_task(host=host, host_settings={"classes": 3, **sizes[host]}, quality="loss")
    loop, stacked = both(task, 2, torch.float64)
    paths = [site.path for site in loop.executor.sites]
    family = loop.executor.sites[0].shape.family
    near = find_blueprint(family, "near_wide").id - 1
    # A seed in front of the tensor that the branch reads, and two between that tensor and the branch.
    plantings = [("blocks.0", 3), ("blocks.2", near), ("blocks.1.0", 0), ("blocks.1", 0)]
    for path, blueprint in plantings:
        action = torch.tensor([paths.index(path), blueprint, Blend.INSTANT, Op.GERMINATE])
        for population in (loop, stacked):
            population.step(action.expand(2, -1))
    for population in (loop, stacked):
        population.step(torch.zeros(2, 4, dtype=torch.int64))
    slots = [paths.index(path) for path, _ in plantings]
    assert (loop.table.contribution[:, slots].abs() > 1e-4).all()
    assert_same_tables(loop.table, stacked.table)


def test_measuring_in_several_goes_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    populations = both(host_task("conv1d"), 4, torch.float64)
    split = populations[0].task.splits().val
    wholes = [population.executor.measure(split) for population in populations]
    monkeypatch.setattr("esper.tolaria.executors.stacked._HELD_ELEMENTS", 1200)
    monkeypatch.setattr("esper.tolaria.executors.loop._CACHED_ELEMENTS", 100)
    for population, whole in zip(populations, wholes, strict=True):
        pieces = population.executor.measure(split)
        assert torch.allclose(whole.loss, pieces.loss, atol=1e-6)
        assert torch.allclose(whole.score, pieces.score, atol=1e-6)
        assert torch.allclose(whole.contributions, pieces.contributions, atol=1e-6, equal_nan=True)


def test_a_broken_host_does_not_touch_its_neighbours() -> None:
    def run(poisoned: bool) -> Tensor:
        population = Population(host_task("conv1d"), 3, executor="stacked")
        population.start([0, 1, 2])
        if poisoned:
            population.executor._now.hosts.weights[1] = NOT_MEASURED  # type: ignore[attr-defined]
        population.step(torch.zeros((3, 4), dtype=torch.int64))
        weights: Tensor = population.executor._now.hosts.weights  # type: ignore[attr-defined]
        return weights[[0, 2]]

    assert torch.equal(run(poisoned=True), run(poisoned=False))


def test_hosts_that_cannot_be_stacked_are_refused_by_name_and_looped_by_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.tolaria.test_episode import NoisyHost

    monkeypatch.setattr(choice, "_FASTER", {})  # what was found for the true host of this task
    monkeypatch.setattr(Task, "build_host", lambda self: NoisyHost())
    with pytest.raises(InputError, match="use the executor 'loop'"):
        Population(tiny_task(), 2, executor="stacked")
    chosen = Population(tiny_task(), 2, executor="auto")
    assert type(chosen.executor).__name__ == "LoopExecutor"


def test_the_automatic_choice_loops_a_single_host() -> None:
    assert type(Population(tiny_task(), 1).executor).__name__ == "LoopExecutor"


@pytest.mark.parametrize(("executor", "envs", "message"), [("quick", 2, "auto, loop, stacked"), ("loop", 0, "envs")])
def test_bad_choices_are_refused(executor: str, envs: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Population(tiny_task(), envs, executor=executor)
