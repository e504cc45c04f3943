"""The world of a run: which episodes its rounds and lessons play, and what twins lead to expect."""

from pathlib import Path

import pytest
import torch

import esper
from esper.leyline import InputError
from esper.simic.config import FIRST_LESSON
from esper.simic.config.reward import ChecksConfig, RewardConfig
from esper.simic.training import GrowthWorld, Trainer, collect_round
from esper.simic.training.setup import EnvRecipe, episode_settings
from esper.simic.training.trainer import FIRST_VALIDATION_SEED
from esper.tasks import find_task
from esper.tolaria import WorkerPool
from esper.tolaria.workers import Command
from tests.simic.training.runs import events, tiny_config
from tests.tolaria.workers.local import Fates
from tests.worlds import TINY, tiny_task

HOSTS, LENGTH = 4, 8


def world_that_loses_a_worker(fates: Fates, twin_weight: float) -> GrowthWorld:
    """Hosts 0 and 1 are in the worker that `fates` can end."""
    config = tiny_config(twin_weight=twin_weight)
    world = GrowthWorld(config)
    recipe = EnvRecipe(TINY, episode_settings(config.world), config.seed, "loop", config.reward)
    world._envs = [WorkerPool(recipe, HOSTS, 2, start=fates.start)]
    return world


@pytest.mark.parametrize("twin_weight", [0.0, 0.4, 1.0])
def test_twins_that_were_lost_do_not_enter_the_mean_of_their_task(twin_weight: float) -> None:
    fates, steps = Fates(), 0

    def after_step() -> None:
        nonlocal steps
        steps += 1
        fates.doom = Command.STEP if steps == 3 else None

    world = world_that_loses_a_worker(fates, twin_weight)
    world.reset(0, after_step)
    returns, dropped = torch.zeros(HOSTS), torch.zeros(HOSTS, dtype=torch.bool)
    for _ in range(LENGTH):
        step = world.step(torch.zeros(HOSTS, 4, dtype=torch.int64))
        returns += step.rewards
        dropped |= step.dropped
    assert dropped.tolist() == [True, True, False, False]
    # Hosts that wait earn what their twins do, so relative to the mean of those that are left they earn 0 together.
    assert float(returns[~dropped].sum()) == pytest.approx(0.0, abs=1e-5)
    assert bool(returns[~dropped].any()) is (twin_weight < 1)


def test_lessons_rounds_and_validation_share_no_seed(tmp_path: Path) -> None:
    config = tiny_config(teacher="schedule", rounds=4, distinct_rounds=4, lesson_passes=1, episode_length=2)
    esper.train(config, tmp_path)
    starts = [event for event in events(tmp_path) if event["type"] == "episode_started"]
    seeds = [event["payload"]["seed"] for event in starts]
    assert len(seeds) == (2 + 4) * HOSTS
    validation = range(FIRST_VALIDATION_SEED, FIRST_VALIDATION_SEED + config.validation_episodes)
    assert len({*seeds, *validation}) == len(seeds) + len(validation)


def test_rounds_come_round_again_and_lessons_do_not() -> None:
    world = GrowthWorld(tiny_config(distinct_rounds=3, episode_length=1))
    plays = [(0, False), (1, False), (3, False), (0, True), (3, True)]
    first, *others = (world.reset(index, lesson=lesson)[0] for index, lesson in plays)
    assert [torch.equal(first, other) for other in others] == [False, True, False, False]


def test_a_run_has_fewer_rounds_than_the_number_of_the_first_lesson() -> None:
    assert tiny_config(rounds=FIRST_LESSON).rounds == FIRST_LESSON
    with pytest.raises(ValueError, match=r"rounds must be in \[0, 1e\+06\]; got 1000001"):
        tiny_config(rounds=FIRST_LESSON + 1)


def test_suspicious_seeds_are_told_of(tmp_path: Path) -> None:
    easily = ChecksConfig(hacking_contribution=0.0, hacking_ratio=0.0)
    reward = RewardConfig(gamma=1.0, checks=easily)
    # Every seed that helps a little is suspicious now.
    esper.train(tiny_config(reward=reward, rounds=1, episode_length=14, envs=8), tmp_path / "run")
    told = [event for event in events(tmp_path / "run") if event["type"] == "reward_hacking_suspected"]
    assert told
    assert all(event["payload"]["ratio"] > 0 and event["slot_id"] and event["env_id"] < 8 for event in told)


def test_mixed_tasks_need_the_same_number_of_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "esper.tasks.registry._REGISTRY",
        {TINY: find_task(TINY), "two": tiny_task(host_settings={"inputs": 6, "widths": (4, 4), "classes": 3})},
    )
    with pytest.raises(InputError, match="same number of slots"):
        Trainer(tiny_config(tasks=(TINY, "two")))


def test_a_host_is_paid_relative_to_its_twin_left_alone() -> None:
    """On average what is summed is the gain over the twins; paid wholly by its own, a host that waits gains nothing."""
    trainer = Trainer(tiny_config(op_bias=(10.0, 0.0, 0.0, 0.0), price=0.03, twin_weight=1.0))
    outcome = collect_round(trainer.agent, trainer.world, 0)
    assert outcome.means()["ops"]["WAIT"] == pytest.approx(8.0)
    assert not outcome.returns.any()
    reward = RewardConfig(gamma=1.0, scale=10.0)  # without the cost of holding, which is no part of the objective
    busy = Trainer(tiny_config(op_bias=(-5.0, 0.0, 0.0, 0.0), price=0.03, episode_length=12, reward=reward))
    outcome = collect_round(busy.agent, busy.world, 0)
    scale = busy.config.reward.scale
    assert float(outcome.returns.mean()) / scale == pytest.approx(outcome.means()["gain"][TINY], abs=1e-5)
    assert outcome.means()["gain"][TINY] != 0.0


def test_twins_are_trained_once_for_the_same_seeds() -> None:
    trainer = Trainer(tiny_config(distinct_rounds=2))
    steps: list[None] = []
    played = []
    for round_index in range(4):
        before = len(steps)
        outcome = collect_round(trainer.agent, trainer.world, round_index, lambda: steps.append(None))
        played.append((len(steps) - before, outcome.means()["objective"][TINY] - outcome.means()["gain"][TINY]))
    assert [count for count, _ in played] == [16, 16, 8, 8]
    assert played[0][1] == pytest.approx(played[2][1])
    assert played[1][1] == pytest.approx(played[3][1])
    assert played[0][1] != pytest.approx(played[1][1])


def test_without_twins_the_rewards_are_those_of_the_host() -> None:
    trainer = Trainer(tiny_config(twins=False, price=0.03))
    outcome = collect_round(trainer.agent, trainer.world, 0)
    assert outcome.means()["gain"][TINY] != outcome.means()["gain"][TINY]  # unknown
    assert float(outcome.returns.mean()) > 0
