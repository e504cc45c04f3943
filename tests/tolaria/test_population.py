"""Populations: independent of neighbours, saved and restored in the middle, ended host by host."""

import gc
import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from esper.leyline import IllegalActionError, InputError, Op
from esper.tamiyo import Random
from esper.tolaria import EpisodeSettings, Population, TrackerSettings
from tests.catalogues import one_more_kind
from tests.worlds import host_task, poison, tiny_task

EXECUTORS = ["loop", "stacked", "native"]
_STATM = Path("/proc/self/statm")
_HOSTS, _ROUNDS, _LENGTH = 20, 50, 8


def scripted(seed: int, steps: int = 25) -> list[Tensor]:
    """Legal random actions of one host, found by living them."""
    population = Population(host_task("conv1d"), 1, executor="loop")
    population.start([seed])
    dice = Random()
    dice.reset(1, seed)
    actions = []
    for _ in range(steps):
        actions.append(dice.decide(population.situation))
        population.step(actions[-1])
    return actions


def weights(population: Population, host: int) -> list[Tensor]:
    return [parameter.detach() for parameter in population.executor.network(host).parameters()]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_host_lives_the_same_episode_alone_and_among_others(executor: str) -> None:
    lives = {seed: scripted(seed) for seed in (5, 6, 7)}
    dtype = torch.float64 if executor == "stacked" else torch.float32
    together = Population(host_task("conv1d"), 3, executor=executor, dtype=dtype)
    together.start(list(lives))
    alone = Population(host_task("conv1d"), 1, executor=executor, dtype=dtype)
    alone.start([6])
    for step in range(25):
        together.step(torch.cat([actions[step] for actions in lives.values()]))
        alone.step(lives[6][step])
    for a, b in zip(weights(together, 1), weights(alone, 0), strict=True):
        assert torch.equal(a, b) if executor != "stacked" else torch.allclose(a, b, atol=1e-9)
    assert together.results()[1].kept == alone.results()[0].kept


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("at", [1, 7, 12])
def test_a_saved_population_goes_on_bit_for_bit(executor: str, at: int) -> None:
    def fresh() -> Population:
        population = Population(host_task("conv1d"), 3, EpisodeSettings(price=(0.01, 0.1)), executor=executor)
        population.start([0, 1, 2])
        return population

    straight, dice = fresh(), Random()
    dice.reset(3, 0)
    actions, saved = [], io.BytesIO()
    for step in range(25):
        if step == at:
            torch.save(straight.state_dict(), saved)
        actions.append(dice.decide(straight.situation))
        straight.step(actions[-1])
    saved.seek(0)
    resumed = Population(host_task("conv1d"), 3, EpisodeSettings(price=(0.01, 0.1)), executor=executor)
    resumed.load_state_dict(torch.load(saved, weights_only=True))
    for step in range(at, 25):
        resumed.step(actions[step])
    assert resumed.table.equals(straight.table)
    assert resumed.results() == straight.results()
    for host in range(3):
        pairs = zip(weights(straight, host), weights(resumed, host), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_a_population_of_another_size_is_refused() -> None:
    state = Population(tiny_task(), 2, executor="loop")
    state.start([0, 1])
    with pytest.raises(InputError, match="2 hosts; this one has 3"):
        Population(tiny_task(), 3, executor="loop").load_state_dict(state.state_dict())


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_ended_host_waits_unchanged_while_others_go_on(executor: str) -> None:
    population = Population(tiny_task(), 2, EpisodeSettings(length=6), executor=executor)
    population.start([0, 1])
    wait = torch.zeros((2, 4), dtype=torch.int64)
    for _ in range(3):
        population.step(wait)
    population.start([7], hosts=[1])
    assert population.signals.epoch.tolist() == [3, 0]
    ends: list[Any] = []
    kept: list[Tensor] = []
    while not population.done:
        outcome = population.step(wait)
        ends.append(outcome.truncated.tolist())
        if outcome.truncated[0]:
            kept = [tensor.clone() for tensor in weights(population, 0)]
            assert not outcome.final_score[0].isnan()
            assert outcome.final_score[1].isnan()
    assert ends == [[False, False]] * 2 + [[True, False]] + [[False, False]] * 2 + [[False, True]]
    assert all(torch.equal(a, b) for a, b in zip(kept, weights(population, 0), strict=True))
    alone = Population(tiny_task(), 1, EpisodeSettings(length=6), executor="loop")
    alone.start([7])
    while not alone.done:
        alone.step(wait[:1])
    assert population.results()[1].test_score == pytest.approx(alone.results()[0].test_score, abs=0.04)
    with pytest.raises(InputError, match="is over"):
        population.step(wait)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_one_hopeless_host_ends_by_panic_and_the_others_by_time(executor: str) -> None:
    population = Population(tiny_task(), 2, EpisodeSettings(length=5), executor=executor)
    population.start([0, 1])
    wait = torch.zeros((2, 4), dtype=torch.int64)
    ended = []
    while not population.done:
        poison(population, 0)
        outcome = population.step(wait)
        ended.append((outcome.terminated.tolist(), outcome.truncated.tolist()))
    assert ended[2] == ([True, False], [False, False])
    assert ended[4] == ([False, False], [False, True])
    assert [result.panics for result in population.results()] == [3, 0]


def test_prices_are_drawn_per_episode_from_the_host_s_own_seed() -> None:
    def prices(seeds: list[int]) -> list[float]:
        population = Population(tiny_task(), len(seeds), EpisodeSettings(price=(0.01, 0.1)), executor="loop")
        population.start(seeds)
        return population.situation.price.tolist()

    many = prices([3, 4, 5])
    assert prices([4]) == many[1:2]
    assert len(set(many)) == 3
    assert all(0.01 <= price <= 0.1 for price in many)


def test_the_outcomes_of_an_episode_chain_and_settle_to_the_committed_network() -> None:
    population = Population(tiny_task(), 1, EpisodeSettings(length=9), executor="loop")
    population.start([0])
    previous = None
    for step in range(9):
        action = torch.tensor([[0, 3, 0, Op.GERMINATE if step == 1 else Op.WAIT]]) * (step == 1)
        outcome = population.step(action)
        if previous is not None:
            assert previous.after.table.equals(outcome.before.table)
            assert torch.equal(previous.after.score, outcome.before.score)
        previous = outcome
    assert previous is not None
    assert previous.truncated.all()
    assert int(previous.final_params) == 0  # never kept
    result = population.results()[0]
    assert float(previous.final_score) == result.val_score


def test_a_population_needs_a_seed_for_every_host() -> None:
    with pytest.raises(InputError, match="2 hosts need as many seeds; got 1"):
        Population(tiny_task(), 2, executor="loop").start([1])


def test_budgets_are_drawn_per_episode_as_shares_of_the_host() -> None:
    def population_of(seeds: list[int], budget: tuple[float, float]) -> Population:
        population = Population(tiny_task(), len(seeds), EpisodeSettings(budget=budget), executor="loop")
        population.start(seeds)
        return population

    many = population_of([3, 4, 5], (0.1, 2.0))
    assert population_of([4], (0.1, 2.0)).budget.tolist() == many.budget[1:2].tolist()
    assert len(set(many.budget.tolist())) == 3
    assert all(int(0.1 * many.host_params) <= budget <= 2 * many.host_params for budget in many.budget.tolist())
    # What is dearer than a host's own budget is not legal for it, and a resumed population keeps the budgets.
    masks, params = many.situation.masks, many.executor.catalogue.params
    assert not (masks.blueprint & (params > many.budget[:, None, None])).any()
    again = Population(tiny_task(), 3, EpisodeSettings(budget=(0.1, 2.0)), executor="loop")
    again.load_state_dict(many.state_dict())
    assert again.budget.tolist() == many.budget.tolist()
    # Drawing a budget changes nothing else in an episode.
    free = Population(tiny_task(), 1, EpisodeSettings(), executor="loop")
    free.start([4])
    assert float(free.situation.score[0]) == float(many.situation.score[1])


@pytest.mark.parametrize("price", [(0.0, 0.1), (0.2, 0.1), (0.1, float("inf"))])
def test_impossible_price_ranges_are_refused(price: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="price range"):
        EpisodeSettings(price=price)


def test_text_is_scored_by_how_far_its_loss_is_below_guessing() -> None:
    population = Population(replace(host_task("transformer"), episode_length=3), 2, executor="loop")
    population.start([0, 1])
    while not population.done:
        population.step(torch.zeros((2, 4), dtype=torch.int64))
    for result in population.results():
        assert 0.0 <= result.val_score < 1.0


def test_nothing_germinates_before_a_host_is_stable_if_the_settings_say_so() -> None:
    every_epoch_is_stable = TrackerSettings(stable_improvement=10.0, stable_epochs=2)
    settings = EpisodeSettings(germinate_when_stable=True, tracker=every_epoch_is_stable)
    population = Population(tiny_task(), 1, settings, executor="loop")
    population.start([0])
    germinate, wait = torch.tensor([[0, 0, 0, Op.GERMINATE]]), torch.zeros((1, 4), dtype=torch.int64)
    for _ in range(3):
        assert not population.situation.masks.op[0, Op.GERMINATE]
        assert population.situation.masks.blueprint.any()  # it would fit
        with pytest.raises(IllegalActionError, match=r"GERMINATE .* is not legal"):
            population.step(germinate)
        population.step(wait)
    assert population.situation.signals.stable.all()
    population.step(germinate)
    assert population.table.occupied[0, 0]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_loss_of_the_committed_network_is_told_at_the_end(executor: str) -> None:
    population = Population(host_task("mlp"), 2, EpisodeSettings(length=5), executor=executor)
    population.start([0, 1])
    wait = torch.zeros((2, 4), dtype=torch.int64)
    population.step(torch.tensor([[1, 1, 0, Op.GERMINATE], [0, 0, 0, Op.WAIT]]))
    for _ in range(3):
        assert population.step(wait).final_loss.isnan().all()
    outcome = population.step(wait)
    seen, final = outcome.after.signals.val_loss, outcome.final_loss
    assert final.tolist() == population.executor.measure(population.task.splits().val).loss.tolist()
    assert final[0] != seen[0]  # its seed was blended, and is dropped
    assert final[1] == pytest.approx(float(seen[1]))


def test_a_population_of_another_catalogue_is_refused_and_changes_nothing() -> None:
    population = Population(tiny_task(), 1, executor="loop")
    population.start([0])
    state = population.state_dict()
    with one_more_kind():
        other = Population(tiny_task(), 1, executor="loop")
        other.start([1])
        with pytest.raises(InputError, match="the saved population was made with another catalogue"):
            other.load_state_dict(state)
        assert not all(map(torch.equal, weights(other, 0), weights(population, 0)))
    del state["catalogue"]
    with pytest.raises(InputError, match="does not say with which blueprints"):
        population.load_state_dict(state)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_rate_of_seeds_can_be_set_for_an_episode(executor: str) -> None:
    def life(scale: float | None, **task: Any) -> list[Tensor]:
        population = Population(tiny_task(**task), 1, EpisodeSettings(seed_lr_scale=scale), executor=executor)
        population.start([0])
        for action in ([0, 3, 0, Op.GERMINATE], [0, 0, 0, Op.WAIT]):
            population.step(torch.tensor([action]))
        return weights(population, 0)

    own, slow = life(None), life(0.25)
    hosts = len(list(tiny_task().build_host().parameters()))
    assert all(map(torch.equal, own[:hosts], slow[:hosts]))  # the seed learns in isolation
    assert not any(map(torch.equal, own[hosts:], slow[hosts:]))
    assert all(map(torch.equal, slow, life(None, optimizer=replace(tiny_task().optimizer, seed_lr_scale=0.25))))
    assert all(map(torch.equal, own, life(1.0)))


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_rate_of_seeds_is_refused_by_name(scale: float) -> None:
    with pytest.raises(InputError, match="seed_lr_scale must be a finite number above 0; got"):
        EpisodeSettings(seed_lr_scale=scale)


def resident_megabytes() -> float:
    gc.collect()
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.slow
@pytest.mark.skipif(not _STATM.exists(), reason="needs Linux's account of resident memory")
@pytest.mark.parametrize("executor", ["loop", "stacked", "native"])
def test_a_thousand_host_episodes_keep_memory_flat(executor: str) -> None:
    population = Population(tiny_task(batches_per_epoch=1), _HOSTS, EpisodeSettings(length=_LENGTH), executor=executor)
    dice = Random()
    dice.reset(_HOSTS, 0)
    resident = []
    for episode in range(_ROUNDS):
        population.start(range(episode * _HOSTS, (episode + 1) * _HOSTS))
        while not population.done:
            population.step(dice.decide(population.situation))
        resident.append(resident_megabytes())
    settled = resident[_ROUNDS // 10]  # caches and allocator pools have filled by then
    assert max(resident[_ROUNDS // 10 :]) < 1.05 * settled
    assert resident[-1] > 0.95 * settled
