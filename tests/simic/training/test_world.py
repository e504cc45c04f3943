"""The world of a run: which episodes its rounds and lessons play, and what twins lead to expect."""

from pathlib import Path

import pytest
import torch

import esper
from esper.simic.config import FIRST_LESSON
from esper.simic.training import GrowthWorld
from esper.simic.training.setup import EnvRecipe, episode_settings
from esper.simic.training.trainer import FIRST_VALIDATION_SEED
from esper.tolaria import WorkerPool
from esper.tolaria.workers import Command
from tests.simic.training.test_vectorized import events, tiny_config
from tests.tolaria.workers.local import Fates
from tests.worlds import TINY

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
    first, *others = (world.reset(index)[0] for index in (0, 1, 3, FIRST_LESSON, FIRST_LESSON + 3))
    assert [torch.equal(first, other) for other in others] == [False, True, False, False]


def test_a_run_has_fewer_rounds_than_the_number_of_the_first_lesson() -> None:
    assert tiny_config(rounds=FIRST_LESSON).rounds == FIRST_LESSON
    with pytest.raises(ValueError, match=r"rounds must be in \[1, 1e\+06\]; got 1000001"):
        tiny_config(rounds=FIRST_LESSON + 1)
