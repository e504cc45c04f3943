"""The executors: the same lives of the same hosts, by loop, stacked and native, agree."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from esper.kasmina import find_blueprint
from esper.leyline import NUM_BLENDS, Blend, InputError, Op, Stage
from esper.tamiyo import Random
from esper.tasks import OptimizerSettings, Task
from esper.tolaria import EpisodeSettings, Population
from esper.tolaria.executors import LoopExecutor, StackedExecutor, choice
from tests.worlds import HOST_SETTINGS, host_task, poison, tiny_task

SGD = OptimizerSettings("sgd", lr=5e-2, weight_decay=0.01)


NATIVE_HOSTS = ("mlp", "conv1d")
"""What the native executor can run."""


def alike(task: Task, num_hosts: int, dtype: torch.dtype, **options: Any) -> list[Population]:
    """The same hosts by every executor that can run them, loop first."""
    names = ("loop", "stacked", "native") if task.host in NATIVE_HOSTS else ("loop", "stacked")
    settings = EpisodeSettings(what_if=True, **options)
    made = [Population(task, num_hosts, settings, executor=name, dtype=dtype) for name in names]
    for population in made:
        population.start(range(num_hosts))
    return made


def differences(populations: list[Population]) -> float:
    """The largest difference between any weights of any network and of its twin by the first executor."""
    loop, *others = populations
    worst = 0.0
    for host in range(loop.num_hosts):
        mine = list(loop.executor.network(host).parameters())
        for other in others:
            pairs = zip(mine, other.executor.network(host).parameters(), strict=True)
            worst = max([worst, *(float((a - b).detach().abs().max()) for a, b in pairs)])
    return worst


MEASURED = ("contribution", "score_at_germination", "improvement", "seed_grad_norm")
"""Columns that hold measurements in single precision; the executors may round their last digit differently."""


def assert_same_tables(populations: list[Population]) -> None:
    """All that the lifecycle decides is the same, and so is which slots were measured; measurements are close."""
    loop, *others = (population.table for population in populations)
    for name, column in loop.columns().items():
        for other in (table.columns()[name] for table in others):
            if name in MEASURED:
                torch.testing.assert_close(other, column, rtol=1e-6, atol=1e-6, equal_nan=True, msg=name)
            else:
                assert torch.equal(other, column), name


def live(populations: list[Population], steps: int, seed: int) -> set[tuple[int, int]]:
    """Random legal lives, the same for all; returns the (slot, blueprint) pairs that were blended."""
    loop, dice = populations[0], Random()
    dice.reset(loop.num_hosts, seed)
    blended: set[tuple[int, int]] = set()
    for _ in range(steps):
        actions = dice.decide(loop.situation)
        first, *others = [population.step(actions).after.table.stage for population in populations]
        assert all(torch.equal(first, other) for other in others)
        for slot in range(loop.table.shape[1]):
            blended |= {(slot, int(b)) for b in loop.table.blueprint[loop.table.alpha[:, slot] > 0, slot]}
        if loop.done:
            break
    return blended


@pytest.mark.parametrize("optimizer", [None, SGD], ids=["adamw", "sgd"])
@pytest.mark.parametrize("host", HOST_SETTINGS)
def test_long_random_lives_agree_in_double_precision(host: str, optimizer: OptimizerSettings | None) -> None:
    task = host_task(host, **({"optimizer": optimizer} if optimizer else {}))
    populations = alike(task, 6, torch.float64)
    blended = live(populations, task.episode_length, seed=1)
    assert differences(populations) < 1e-9
    assert len(blended) >= 6
    first, *others = [population.results() for population in populations]
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert (a.kept, a.added_params) == (b.kept, b.added_params)
            assert a.test_score == pytest.approx(b.test_score, abs=1e-6)


@pytest.mark.parametrize("host", HOST_SETTINGS)
def test_every_blueprint_lives_its_whole_life_alike(host: str) -> None:
    """One host per pair of slot and blueprint that fits: germinated, trained, blended, kept or culled."""
    task = host_task(host)
    fits = Population(task, 1, executor="loop").executor.catalogue.fits.nonzero().tolist()
    populations = alike(task, len(fits), torch.float64)
    loop = populations[0]
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
        for population in populations:
            population.step(actions)
        assert_same_tables(populations)
        assert differences(populations) < 1e-9
        held |= bool(loop.table.holds.any())
    assert held or task.quality == "loss"  # a trial went against some seed
    stages = set(loop.table.stage.flatten().tolist())
    assert {Stage.FOSSILIZED.value, Stage.DORMANT.value} <= stages


@pytest.mark.parametrize("host", HOST_SETTINGS)
def test_short_lives_agree_in_single_precision(host: str) -> None:
    """With SGD: where a gradient is zero but for rounding, AdamW would step by the whole learning rate either way."""
    populations = alike(host_task(host, optimizer=SGD), 4, torch.float32)
    live(populations, 6, seed=2)  # 12 optimiser steps
    assert differences(populations) < 1e-5


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10_000), num_hosts=st.integers(1, 5), steps=st.integers(1, 12))
def test_any_life_of_any_number_of_hosts_agrees(seed: int, num_hosts: int, steps: int) -> None:
    populations = alike(host_task("conv1d"), num_hosts, torch.float64)
    live(populations, steps, seed)
    assert differences(populations) < 1e-9
    assert_same_tables(populations)


def test_measurements_agree_with_leaving_each_seed_out() -> None:
    populations = alike(host_task("conv1d"), 6, torch.float64)
    loop = populations[0]
    live(populations, 9, seed=3)
    split = loop.task.splits().val
    # Any alpha can be tried of any seed, not only the one that comes next.
    alphas = torch.rand(loop.table.shape, generator=torch.Generator().manual_seed(0))
    trials = torch.where(loop.table.occupied, alphas, torch.nan)
    a, *others = (population.executor.measure(split, what_if=True, trials=trials) for population in populations)
    assert (~a.contributions.isnan()).sum() > 3
    assert (~a.prospects.isnan()).any()
    assert torch.equal(a.trials.isnan(), trials.isnan())
    for b in others:
        pairs = ((a.contributions, b.contributions), (a.prospects, b.prospects), (a.trials, b.trials), (a.loss, b.loss))
        for mine, other in pairs:
            torch.testing.assert_close(mine, other, rtol=0.0, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("host", ["mlp", "transformer"])
def test_an_alpha_that_breaks_the_network_costs_all_of_its_score(host: str) -> None:
    populations = alike(host_task(host), 1, torch.float64)
    trials = torch.full_like(populations[0].table.alpha, torch.nan)
    trials[0, 0] = 1 / 3
    for population in populations:
        population.step(torch.tensor([[0, 3, 0, Op.GERMINATE]]))
        executor: Any = population.executor
        with torch.no_grad():
            if isinstance(executor, LoopExecutor):
                next(executor.network(0).slots[0].parameters()).fill_(torch.nan)
            elif isinstance(executor, StackedExecutor):
                executor._now.seeds[0, 4].weights.fill_(torch.nan)
            else:
                executor._now[0].weights[executor.host_params :] = torch.nan
        measured = population.executor.measure(population.task.splits().val, trials=trials)
        assert measured.score.isfinite().all()
        assert torch.equal(measured.trials[:, 0], -measured.score)


@pytest.mark.parametrize("host", ["mlp", "conv1d"])
def test_what_a_branch_reads_is_without_the_seed_that_is_left_out(host: str) -> None:
    sizes: dict[str, Any] = {"mlp": {"inputs": 6, "widths": (4, 4, 4)}, "conv1d": {"channels": (4, 5, 6)}}
    task = tiny_task(host=host, host_settings={"classes": 3, **sizes[host]}, quality="loss")
    populations = alike(task, 2, torch.float64)
    loop = populations[0]
    paths = [site.path for site in loop.executor.sites]
    family = loop.executor.sites[0].shape.family
    near = find_blueprint(family, "near_wide").id - 1
    # A seed in front of the tensor that the branch reads, and two between that tensor and the branch.
    plantings = [("blocks.0", 3), ("blocks.2", near), ("blocks.1.0", 0), ("blocks.1", 0)]
    for path, blueprint in plantings:
        action = torch.tensor([paths.index(path), blueprint, Blend.INSTANT, Op.GERMINATE])
        for population in populations:
            population.step(action.expand(2, -1))
    for population in populations:
        population.step(torch.zeros(2, 4, dtype=torch.int64))
    slots = [paths.index(path) for path, _ in plantings]
    assert (loop.table.contribution[:, slots].abs() > 1e-4).all()
    assert_same_tables(populations)


def test_measuring_in_several_goes_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    populations = alike(host_task("conv1d"), 4, torch.float64)
    split = populations[0].task.splits().val
    wholes = [population.executor.measure(split) for population in populations]
    monkeypatch.setattr("esper.tolaria.executors.stacked._HELD_ELEMENTS", 1200)
    monkeypatch.setattr("esper.tolaria.executors.loop._CACHED_ELEMENTS", 100)
    monkeypatch.setattr("esper.tolaria.executors.native._CHUNK", 5)
    for population, whole in zip(populations, wholes, strict=True):
        pieces = population.executor.measure(split)
        assert torch.allclose(whole.loss, pieces.loss, atol=1e-6)
        assert torch.allclose(whole.score, pieces.score, atol=1e-6)
        assert torch.allclose(whole.contributions, pieces.contributions, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", ["stacked", "native"])
def test_a_broken_host_does_not_touch_its_neighbours(name: str) -> None:
    def run(poisoned: bool) -> list[Tensor]:
        population = Population(host_task("conv1d"), 3, executor=name)
        population.start([0, 1, 2])
        if poisoned:
            poison(population, 1)
        outcome = population.step(torch.zeros((3, 4), dtype=torch.int64))
        assert outcome.panicked.tolist() == [False, poisoned, False]
        return [weight for host in (0, 2) for weight in population.executor.network(host).parameters()]

    assert all(torch.equal(a, b) for a, b in zip(run(poisoned=True), run(poisoned=False), strict=True))


def test_native_hosts_do_not_depend_on_who_runs_beside_them() -> None:
    many, one = (Population(host_task("conv1d"), num, executor="native") for num in (4, 1))
    many.start(range(4))
    one.start([2])
    dice = Random()
    dice.reset(4, 0)
    for _ in range(8):
        actions = dice.decide(many.situation)
        many.step(actions)
        one.step(actions[2:3])
    pairs = zip(many.executor.network(2).parameters(), one.executor.network(0).parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert many.table.select(slice(2, 3)).equals(one.table)


@pytest.mark.parametrize("host", ["conv2d", "transformer"])
def test_the_native_executor_refuses_what_it_cannot_run(host: str) -> None:
    with pytest.raises(InputError, match=r"'native'.*use 'stacked' or 'loop'"):
        Population(host_task(host), 2, executor="native")


def test_hosts_that_cannot_be_stacked_are_refused_by_name_and_looped_by_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.tolaria.test_episode import NoisyHost

    monkeypatch.setattr(choice, "_FASTEST", {})  # what was found for the true host of this task
    monkeypatch.setattr(Task, "build_host", lambda self: NoisyHost())
    with pytest.raises(InputError, match="use the executor 'loop'"):
        Population(tiny_task(), 2, executor="stacked")
    chosen = Population(tiny_task(), 2, executor="auto")
    assert type(chosen.executor).__name__ == "LoopExecutor"


def test_the_automatic_choice_loops_a_single_host() -> None:
    assert type(Population(tiny_task(), 1).executor).__name__ == "LoopExecutor"


@pytest.mark.parametrize(("executor", "envs", "message"), [("quick", 2, "loop, stacked, native"), ("loop", 0, "envs")])
def test_bad_choices_are_refused(executor: str, envs: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Population(tiny_task(), envs, executor=executor)
