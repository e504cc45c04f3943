"""A policy that starts from a teacher: it does what the teacher did, and everything else goes on as usual."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import esper
from esper.leyline import InputError, Op
from esper.simic.agent.cloning import clone
from esper.simic.config import LessonConfig, TrainingConfig
from esper.simic.search import PlanTeacher, search_tasks
from esper.simic.training import InterruptedRunError, RunFolder, Trainer, collect_round, load_controller
from esper.simic.training.setup import search_job
from esper.simic.training.world import RoundTally
from esper.tamiyo import Controller, Random
from esper.tolaria import EpisodeSettings, Population
from tests.simic.training.runs import assert_same_run, events, final_weights, tiny_config
from tests.worlds import TINY, tiny_task


def agreement(trainer: Trainer) -> float:
    """Share of the steps in the buffer at which the most probable op is the one that was taken."""
    batch = trainer.agent.buffer.get_batched_sequences()
    logits = trainer.agent._base_network(batch.obs, batch.hidden).logits
    op = trainer.agent.spec.names.index("op")
    legal = batch.selected[:, :, op]
    likeliest = torch.where(legal, logits[:, :, op], -torch.inf).argmax(-1)
    return float((likeliest == batch.actions[:, :, op])[batch.valid].float().mean())


def after(steps: int) -> Callable[[], bool]:
    calls = itertools.count()
    return lambda: next(calls) >= steps


def test_a_clone_does_what_its_teacher_did_and_keeps_room_to_try() -> None:
    trainer = Trainer(tiny_config(episode_length=14, envs=8))
    outcome = collect_round(trainer.agent, trainer.world, 0, teacher="schedule")
    assert outcome.means()["ops"]["GERMINATE"] == pytest.approx(1.0)
    assert outcome.means()["kept"] > 0.5  # alphas that hold too often let a seed be culled
    untaught = agreement(trainer)
    losses = clone(trainer.agent, LessonConfig(passes=60, lr=3e-3, op_smoothing=0.1, detail_smoothing=0.05)).losses
    assert losses[-1] < 0.5 * losses[0]
    assert untaught < 1.0
    assert agreement(trainer) == 1.0
    outcome = collect_round(trainer.agent, trainer.world, 1)
    assert 0.5 < outcome.means()["ops"]["GERMINATE"] < 3.0
    assert float(trainer.agent.buffer.log_probs[:, 0, -1].exp().max()) < 1.0  # planting is likely, but not certain


@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_a_clone_keeps_the_share_for_other_ops_that_it_was_told_to(smoothing: float) -> None:
    trainer = Trainer(tiny_config(twins=False, op_bias=(0.0, 0.0, 0.0, 0.0)))
    collect_round(trainer.agent, trainer.world, 0, teacher="never")
    clone(trainer.agent, LessonConfig(passes=60, lr=1e-2, op_smoothing=smoothing, detail_smoothing=0.0))
    batch = trainer.agent.buffer.get_batched_sequences()
    op = trainer.agent.spec.names.index("op")
    legal = batch.selected[:, :, op]
    logits = trainer.agent._base_network(batch.obs, batch.hidden).logits[:, :, op]
    waiting = torch.where(legal, logits, -torch.inf).softmax(-1)[..., Op.WAIT]
    expected = 1 - smoothing + smoothing / legal.sum(-1)
    torch.testing.assert_close(waiting, expected, atol=0.05, rtol=0)


def test_lessons_come_once_and_are_saved(tmp_path: Path) -> None:
    config = tiny_config(teacher="schedule", rounds=2)
    esper.train(config, tmp_path / "straight")
    told = [event["type"] for event in events(tmp_path / "straight")]
    marks = [kind for kind in told if kind in ("lesson_completed", "round_completed")]
    assert marks == ["lesson_completed"] * 2 + ["round_completed"] * 2
    # In each lesson and in the first round: 16 steps are the baselines', then 8 are those of the twins of each of them.
    for steps in (16 + 8 + 4, 16 + 16 + 8 + 4, 16 + 32 + 8 + 2):
        out = tmp_path / f"cut-{steps}"
        with pytest.raises(InterruptedRunError):
            esper.train(config, out, should_stop=after(steps))
        assert RunFolder(out).newest() is not None
        esper.train(config, out, resume=True)
        assert_same_run(tmp_path / "straight", out)


def test_a_policy_that_plays_is_told_what_its_teacher_would_do() -> None:
    trainer = Trainer(tiny_config(episode_length=12, op_bias=(0.0, 3.0, 3.0, 3.0)))
    arguments = (trainer.agent, trainer.world, 0)
    outcome = collect_round(*arguments, teacher="never", watch=False)
    assert outcome.means()["ops"]["GERMINATE"] > 1.0  # the policy has played
    assert not trainer.agent.buffer.actions.any()  # and was told to wait


def test_a_lesson_tells_of_what_it_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_a_bad_reward(*arguments: Any, **options: Any) -> RoundTally:
        outcome = collect_round(*arguments, **options)
        arguments[0].buffer.rewards[1, 2] = math.nan
        return outcome

    monkeypatch.setattr("esper.simic.training.trainer.collect_round", with_a_bad_reward)
    announced: list[str] = []
    config = tiny_config(teacher="schedule", rounds=1, lessons=1)
    esper.train(config, tmp_path / "run", announce=announced.append)
    (lesson,) = [event["payload"] for event in events(tmp_path / "run") if event["type"] == "lesson_completed"]
    assert (lesson["left_out"], lesson["skipped_steps"]) == (1, 0)
    assert "NaN or infinity: 1 episodes and 0 minibatches were left out" in announced
    assert all(weights.isfinite().all() for weights in final_weights(tmp_path / "run"))


def test_an_unknown_teacher_is_named() -> None:
    with pytest.raises(InputError, match=r"unknown lessons.teacher 'professor'; choose one of: .*heuristic"):
        Trainer(tiny_config(teacher="professor"))


def searching_config(**overrides: Any) -> TrainingConfig:
    settings = {"teacher": "search", "search_episodes": 32, "search_final_seeds": 4, "episode_length": 9, "rounds": 1}
    return tiny_config(**(settings | {"executor": "native"} | overrides))


@pytest.mark.parametrize("architecture", ["flat", "pointing"])
def test_what_a_search_has_learned_is_distilled(tmp_path: Path, architecture: str) -> None:
    config = searching_config(
        lessons=3, lesson_passes=100, price=0.03, rounds=0, envs=8, architecture=architecture, search_episodes=64
    )
    announced: list[str] = []
    esper.train(config, tmp_path, announce=announced.append)
    assert any(what.startswith(f"searching for plans of {TINY}: 32 of at most") for what in announced)
    told = [event["payload"] for event in events(tmp_path) if event["type"] == "lesson_completed"]
    assert [lesson["lesson"] for lesson in told] == [1, 2, 3]
    assert told[-1]["last_loss"] < 0.5 * told[0]["first_loss"]
    # On fresh hosts its decisions cost little, as the same search sees it, and less than those of chance.
    (found,) = search_tasks(search_job(config, tmp_path / "search"))
    best = RunFolder(tmp_path).best
    costs = [mean_regret(PlanTeacher(found), controller) for controller in (load_controller(best), Random())]
    assert costs[0] < 0.5 * costs[1]


def mean_regret(teacher: PlanTeacher, controller: Controller) -> float:
    """Of the decisions to wait, plant or keep that a controller takes in eight episodes, in points."""
    population = Population(tiny_task(), 8, EpisodeSettings(length=9, price=0.03), executor="loop")
    population.start(range(100, 108))
    controller.reset(8, 0)
    teacher.reset(8, 0)
    costs, hosts = [], torch.arange(8)
    while not population.done:
        teacher.decide(population.situation)
        actions, regrets = controller.decide(population.situation), teacher.regrets[-1]
        slot, kind, blend, op = actions.unbind(1)
        of_op = (regrets.wait, regrets.germinate[hosts, slot, kind, blend], regrets.fossilize[hosts, slot])
        costs.append(torch.stack([*of_op, regrets.cull])[op, hosts])
        population.step(actions)
    return float(torch.stack(costs).mean())


def test_a_search_that_is_stopped_within_a_run_goes_on(tmp_path: Path) -> None:
    config = searching_config()
    esper.train(config, tmp_path / "straight")
    # Two baselines take 18 steps; then the search asks when it begins, after its batch and after its final rounds.
    # Then come the lessons, of which each one that is interrupted begins anew with the first.
    for asked in (20, 23, 35, 60):
        out = tmp_path / f"cut-{asked}"
        with pytest.raises(InterruptedRunError):
            esper.train(config, out, should_stop=after(asked))
        esper.train(config, out, resume=True)
        assert_same_run(tmp_path / "straight", out)


def test_a_search_at_no_price_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="prices must be numbers above 0"):
        esper.train(searching_config(price=0.0), tmp_path / "run")
    assert not (tmp_path / "run").exists()
