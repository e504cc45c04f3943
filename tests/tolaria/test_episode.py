"""Episodes: repeatable bit for bit, measured by counterfactuals, ended as documented."""

import math
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import Host, take_snapshot
from esper.kasmina.lifecycle import MAX_HOLDS
from esper.leyline import (
    BLENDING_EPOCHS,
    TRAINING_EPOCHS,
    EventType,
    IllegalActionError,
    InputError,
    Op,
    Stage,
)
from esper.nissa import Hub, MemorySink
from esper.tamiyo import Heuristic, Never, Planting, Random, Schedule, run_episode, wait
from esper.tasks import OptimizerSettings, Task, find_task
from esper.tolaria import Episode, EpisodeSettings, Population
from esper.tolaria.executors.base import learning_rate
from esper.tolaria.executors.loop import measure
from tests.worlds import tiny_task

WAIT = torch.tensor([[0, 0, 0, Op.WAIT]])
KEEP_TWO = Schedule([Planting(1, 0, 3), Planting(2, 1, 1)])


def final_tensors(seed: int, **overrides: Any) -> list[Tensor]:
    episode = Episode(tiny_task(), seed, **overrides)
    controller = Random()
    controller.reset(1, seed)
    while not episode.done:
        episode.step(controller.decide(episode.situation))
    episode.finish()
    return list(take_snapshot(episode.model).tensors.values())


def test_the_same_seed_gives_the_same_episode_bit_for_bit() -> None:
    first = final_tensors(3)
    torch.manual_seed(99)  # what happens around an episode does not matter
    torch.randn(10)
    second = final_tensors(3, hub=Hub([MemorySink()]))
    assert len(first) == len(second)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], final_tensors(4)[0])


def test_a_host_left_alone_beside_seeds_in_training_is_the_host_alone() -> None:
    alone, grown = Episode(tiny_task(), 0), Episode(tiny_task(), 0)
    for step in range(3):
        alone.step(WAIT)
        grown.step(torch.tensor([[0, 3, 0, Op.GERMINATE]]) if step == 1 else WAIT)
    assert grown.model.slot("r0c0").stage is Stage.BLENDING
    for a, b in zip(alone.model.host.parameters(), grown.model.host.parameters(), strict=True):
        assert torch.equal(a, b)


def test_contributions_are_the_score_with_minus_without_each_seed() -> None:
    episode = Episode(tiny_task(), 1)
    KEEP_TWO.reset(1, 1)
    while not episode.done:
        episode.step(KEEP_TWO.decide(episode.situation))
    split = episode.task.splits().val
    measured = measure(episode.model, episode.task, split)

    def score() -> float:
        with torch.inference_mode():
            right: Tensor = episode.model(split.x).argmax(1) == split.y
        return right.float().mean().item()

    assert float(measured.score) == pytest.approx(score())
    for slot in ("r0c0", "r0c1"):
        with episode.model.override_alpha(slot, 0.0):
            expected = float(measured.score) - score()
        index = episode.model.slot_index(slot)
        assert float(measured.contributions[0, index]) == pytest.approx(expected, abs=1e-6)
    assert measured.contributions[0, 2].isnan()


def test_what_an_isolated_seed_would_bring_is_told_on_request_and_changes_nothing() -> None:
    def live(**settings: Any) -> tuple[Episode, list[Any]]:
        memory = MemorySink()
        episode = Episode(tiny_task(), 0, EpisodeSettings(**settings), hub=Hub([memory]))
        for step in range(3):
            episode.step(torch.tensor([[1, 3, 0, Op.GERMINATE]]) if step == 1 else WAIT)
        epochs = [event.payload for event in memory.events if event.event_type is EventType.EPOCH_COMPLETED]
        return episode, [epoch["slots"][1]["what_if"] for epoch in epochs]  # type: ignore[index]

    plain, unasked = live()
    asked, prospects = live(what_if=True)
    assert all(math.isnan(value) for value in unasked)
    assert [math.isnan(value) for value in prospects] == [True, False, False]
    for a, b in zip(plain.model.parameters(), asked.model.parameters(), strict=True):
        assert torch.equal(a, b)
    split = asked.task.splits().val
    asked.model.table.alpha[0, 1] = 0.0  # as it was before it began to blend
    measured = measure(asked.model, asked.task, split, what_if=True)
    with asked.model.override_alpha("r0c1", 1.0), torch.inference_mode():
        right: Tensor = asked.model(split.x).argmax(1) == split.y
    assert float(measured.prospects[0, 1]) == pytest.approx(
        right.float().mean().item() - float(measured.score), abs=1e-6
    )


def test_a_seed_that_does_nothing_contributes_exactly_nothing() -> None:
    episode = Episode(tiny_task(), 0)
    episode.model.plant_fossils({"r0c2": "mlp"})  # born without effect
    assert float(measure(episode.model, episode.task, episode.task.splits().val).contributions[0, 2]) == 0.0


def test_only_what_was_kept_for_good_counts_at_the_end() -> None:
    kept = run_episode(tiny_task(), KEEP_TWO, 0)
    assert [(seed.slot_id, seed.blueprint) for seed in kept.kept] == [("r0c0", "mlp"), ("r0c1", "low_rank")]
    assert kept.added_params == sum(seed.params for seed in kept.kept) > 0
    too_late = run_episode(tiny_task(), Schedule([Planting(22, 0, 3)]), 0)
    assert (too_late.kept, too_late.added_params) == ((), 0)
    never = run_episode(tiny_task(), Never(), 0)
    assert too_late.test_score == never.test_score  # it never left isolation


def test_the_objective_charges_rent_for_what_was_added() -> None:
    result = run_episode(tiny_task(), KEEP_TWO, 0, EpisodeSettings(price=0.1))
    rent = 0.1 * result.added_params / result.host_params
    assert result.val_objective == pytest.approx(result.val_score - rent)
    assert result.test_objective == pytest.approx(result.test_score - rent)


def test_a_static_network_starts_with_its_seeds_in_place() -> None:
    result = run_episode(tiny_task(), Never(), 0, fossils={"r0c1": "mlp"})
    assert [seed.blueprint for seed in result.kept] == ["mlp"]
    assert result.added_params > 0


def test_illegal_actions_raise_and_cost_nothing() -> None:
    episode = Episode(tiny_task(), 0)
    with pytest.raises(IllegalActionError):
        episode.step(torch.tensor([[0, 0, 0, Op.CULL]]))
    assert int(episode.signals.epoch) == 0


def test_a_broken_epoch_is_rolled_back_reported_and_survived() -> None:
    memory = MemorySink()
    episode = Episode(tiny_task(), 0, hub=Hub([memory]))
    episode.step(WAIT)
    good = [p.clone() for p in episode.model.host.parameters()]
    with torch.no_grad():
        next(episode.model.host.parameters()).fill_(torch.nan)
    episode.step(WAIT)
    assert all(torch.equal(a, b) for a, b in zip(good, episode.model.host.parameters(), strict=True))
    assert int(episode.signals.epoch) == 2
    (rollback,) = [event for event in memory.events if event.event_type is EventType.GOVERNOR_ROLLBACK]
    assert rollback.payload["reason"] == "training loss is nan"
    while not episode.done:
        episode.step(WAIT)
    assert episode.finish().panics == 1


def test_a_panic_in_the_first_epoch_returns_to_the_start_of_the_episode() -> None:
    memory = MemorySink()
    episode = Episode(tiny_task(), 0, fossils={"r0c0": "norm"}, hub=Hub([memory]))
    score = episode.situation.score.clone()
    with torch.no_grad():
        next(episode.model.host.parameters()).fill_(torch.nan)
    seen = episode.situation.signals
    episode.step(torch.tensor([[1, 3, 0, Op.GERMINATE]]))
    assert episode.model.slot("r0c0").stage is Stage.FOSSILIZED
    assert torch.equal(episode.situation.score, score)
    assert int(seen.epoch) == 0  # what was handed out is not changed afterwards
    moves = [event.payload for event in memory.events if event.event_type is EventType.SEED_TRANSITION]
    assert (moves[-1]["from"], moves[-1]["to"], moves[-1]["rolled_back"]) == ("TRAINING", "DORMANT", True)


def test_an_episode_that_is_over_takes_no_more_steps() -> None:
    episode = Episode(tiny_task(), 0, EpisodeSettings(length=1))
    episode.step(WAIT)
    with pytest.raises(InputError, match="is over"):
        episode.step(WAIT)


def test_seeds_that_are_there_from_the_start_obey_the_budget() -> None:
    with pytest.raises(IllegalActionError, match="of the budget are left"):
        Episode(tiny_task(), 0, EpisodeSettings(budget=0), fossils={"r0c0": "mlp"})
    episode = Episode(tiny_task(), 0, fossils={"r0c0": "norm"})
    with pytest.raises(IllegalActionError, match="not free"):
        episode.model.plant_fossils({"r0c0": "mlp"})


class NoisyHost(Host):
    """A host with running statistics and dropout, as people may register."""

    parts = ("first", "rest")
    slot_sites = ("first",)

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.rest = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


def test_measuring_neither_learns_nor_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Task, "build_host", lambda self: NoisyHost())
    episode = Episode(tiny_task(), 0)
    episode.step(WAIT)
    statistics = [buffer.clone() for buffer in episode.model.host.buffers()]
    first, second = (measure(episode.model, episode.task, episode.task.splits().test) for _ in range(2))
    assert (first.loss, first.score) == (second.loss, second.score)
    assert all(torch.equal(a, b) for a, b in zip(statistics, episode.model.host.buffers(), strict=True))
    episode.step(WAIT)
    assert not torch.equal(statistics[0], next(iter(episode.model.host.buffers())))


def test_looking_for_merit_neither_learns_nor_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Task, "build_host", lambda self: NoisyHost())
    looked, alone = (Episode(tiny_task(), 0, EpisodeSettings(merit=merit)) for merit in (True, False))
    for episode in (looked, alone):
        torch.manual_seed(0)  # dropout draws from torch's own state
        for _ in range(5):
            episode.step(WAIT)
    mine, other = looked.model.host.state_dict(), alone.model.host.state_dict()
    assert all(torch.equal(mine[name], other[name]) for name in mine)
    assert any("running" in name for name in mine)


def test_an_episode_that_cannot_be_trained_ends_at_the_third_panic() -> None:
    hopeless = tiny_task(optimizer=replace(tiny_task().optimizer, lr=1e30))
    result = run_episode(hopeless, Never(), 0)
    assert result.panics == 3


def test_events_tell_the_story_of_a_seed() -> None:
    memory = MemorySink()
    run_episode(tiny_task(), Schedule([Planting(1, 3, 3)]), 0, hub=Hub([memory]))
    moves = [event for event in memory.events if event.event_type is EventType.SEED_TRANSITION]
    assert [move.payload["to"] for move in moves] == ["GERMINATED", "TRAINING", "BLENDING", "HOLDING", "FOSSILIZED"]
    planted, isolated, blending, holding, kept = (cast(int, move.payload["epoch"]) for move in moves)
    assert planted == isolated == 2
    gate, full = isolated + TRAINING_EPOCHS - 1, isolated + TRAINING_EPOCHS - 1 + BLENDING_EPOCHS
    assert gate <= blending <= gate + MAX_HOLDS  # the first alpha may hold, as may those after it
    assert blending - gate <= holding - full <= MAX_HOLDS
    assert kept == holding + 1
    assert {(move.slot_id, move.payload["blueprint"]) for move in moves} == {("r0c3", "mlp")}
    kinds = [event.event_type for event in memory.events]
    assert kinds[0] is EventType.EPISODE_STARTED
    assert kinds[-1] is EventType.EPISODE_ENDED
    assert kinds.count(EventType.EPOCH_COMPLETED) == tiny_task().episode_length


def test_the_budget_is_never_exceeded() -> None:
    budget = 40
    episode = Episode(tiny_task(), 0, EpisodeSettings(budget=budget))
    controller = Random()
    controller.reset(1, 0)
    while not episode.done:
        episode.step(controller.decide(episode.situation))
        assert int(episode.model.table.added_params) <= budget


@pytest.mark.parametrize(("schedule", "at_half"), [("constant", 1.0), ("cosine", 0.5), ("wsd", 1.0)])
def test_schedules_warm_up_and_fall_to_nothing_unless_they_are_constant(schedule: Any, at_half: float) -> None:
    settings = OptimizerSettings(lr=0.1, schedule=schedule)
    rates = [learning_rate(settings, step, 25, 1000) / settings.lr for step in range(1000)]
    assert rates[500] == pytest.approx(at_half)
    if schedule == "constant":
        assert set(rates) == {1.0}
        return
    assert rates[0] == pytest.approx(1 / 50)
    assert rates[49] == pytest.approx(1.0, abs=0.01)
    assert 0 < rates[-1] < 0.01
    if schedule == "wsd":
        assert set(rates[50:700]) == {1.0}
        assert rates[850] == pytest.approx(0.5)


@pytest.mark.parametrize("executor", ["loop", "stacked", "native"])
def test_a_step_has_as_many_minibatches_and_the_rate_that_were_asked_for(executor: str) -> None:
    def weights(**settings: Any) -> Tensor:
        population = Population(tiny_task(), 1, EpisodeSettings(**settings), executor=executor)
        population.start([0])
        population.step(wait(1))
        return torch.cat([p.detach().flatten() for p in population.executor.network(0).parameters()])

    task = tiny_task()
    assert torch.equal(weights(batches_per_epoch=task.batches_per_epoch, host_lr=task.optimizer.lr), weights())
    assert not torch.equal(weights(batches_per_epoch=task.batches_per_epoch + 1), weights())
    assert not torch.equal(weights(host_lr=task.optimizer.lr / 2), weights())


@pytest.mark.parametrize("executor", ["loop", "stacked", "native"])
def test_what_is_there_from_the_start_is_initialised_as_an_ordinary_network(executor: str) -> None:
    def outputs(fossils: dict[str, str]) -> Tensor:
        population = Population(tiny_task(), 1, executor=executor)
        population.start([0], fossils=fossils)
        with torch.no_grad():
            result: Tensor = population.executor.network(0).eval()(tiny_task().splits().val.x)
        return result

    assert not torch.allclose(outputs({"r0c1": "far_wide"}), outputs({}), atol=1e-3)


def test_the_heuristic_runs_on_a_real_task() -> None:
    result = run_episode(find_task("digits"), Heuristic(), 0, EpisodeSettings(length=12))
    assert result.test_score > 0.5
