"""`gymnasium.make_vec("esper/Growth-v0")`: many hosts by Gymnasium's rules."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

import esper
from esper.api.gym import joint_actions
from esper.leyline import Op
from esper.simic.training import EnvRecipe
from esper.tolaria import EpisodeSettings, WorkerPool
from esper.tolaria.workers import Command
from tests.tolaria.workers.local import Fates
from tests.worlds import slots_of, tiny_task

WAIT = np.zeros((3, 4), dtype=np.int64)
SLOTS = slots_of(tiny_task())
ACTIONS = len(joint_actions(SLOTS))


def make(**options: Any) -> Any:
    settings: dict[str, Any] = {"task": tiny_task(), "episode_length": 4, "executor": "loop"} | options
    return gymnasium.make_vec("esper/Growth-v0", num_envs=3, vectorization_mode="vector_entry_point", **settings)


def test_shapes_spaces_and_autoreset_mode_are_declared() -> None:
    envs = make()
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    observations, info = envs.reset(seed=0)
    assert observations in envs.observation_space
    assert envs.action_space.shape == (3, 4)
    assert info["action_mask"].shape == (3, ACTIONS)
    observations, rewards, terminated, truncated, info = envs.step(envs.action_space.sample())
    assert observations in envs.observation_space
    assert rewards.shape == terminated.shape == truncated.shape == info["illegal_action"].shape == (3,)
    assert make(flat_actions=True).action_space.shape == (3,)


def test_it_steps_like_make_env_with_the_same_seed() -> None:
    envs, core = make(), esper.make_env(tiny_task(), envs=3, episode_length=4, seed=5, executor="loop")
    assert np.array_equal(envs.reset(seed=5)[0], core.reset()[0].numpy())
    actions = np.array([[0, 0, 0, Op.GERMINATE], [1, 1, 1, Op.GERMINATE], [0, 0, 0, Op.WAIT]])
    for step in range(3):
        observations, rewards, *_ = envs.step(actions if step == 0 else WAIT)
        expected = core.step(core.situation.table.stage.new_tensor(actions if step == 0 else WAIT))
        assert np.array_equal(observations, expected.observations.numpy())
        assert np.array_equal(rewards, expected.rewards.numpy())


def test_an_ended_episode_is_followed_by_the_next_in_the_same_step() -> None:
    envs, core = make(), esper.make_env(tiny_task(), envs=3, episode_length=4, seed=6, executor="loop")
    envs.reset(seed=6)
    core.reset()
    for _ in range(4):
        observations, _, _, truncated, info = envs.step(WAIT)
        last = core.step(core.situation.table.stage.new_tensor(WAIT))
    assert truncated.all()
    assert np.array_equal(info["final_obs"], last.observations.numpy())
    assert info["_final_obs"].all()
    expected = [result.val_objective for result in core.results()]
    assert info["final_info"]["objective"] == pytest.approx(expected)
    assert np.array_equal(observations, core.reset()[0].numpy())
    assert "final_obs" not in envs.step(WAIT)[-1]


def test_only_illegal_actions_become_wait() -> None:
    envs = make()
    envs.reset(seed=0)
    *_, info = envs.step(np.array([[0, 0, 0, Op.CULL], [0, 0, 0, Op.WAIT], [1, 0, 0, Op.GERMINATE]]))
    assert info["illegal_action"].tolist() == [True, False, False]
    free = np.ones((3, SLOTS), dtype=bool)
    free[2, 1] = False
    assert np.array_equal(info["masks"]["slot"][:, Op.GERMINATE], free)


def test_wrappers_of_gymnasium_read_its_infos() -> None:
    envs = DictInfoToList(make())
    envs.reset(seed=0)
    for _ in range(4):
        *_, infos = envs.step(WAIT)
    assert [info["action_mask"].shape for info in infos] == [(ACTIONS,)] * 3
    assert all(np.isfinite(info["final_info"]["objective"]) for info in infos)
    counted = RecordEpisodeStatistics(make())
    counted.reset(seed=0)
    for _ in range(4):
        *_, info = counted.step(WAIT)
    assert info["episode"]["l"].tolist() == [4, 4, 4]


def test_an_episode_that_was_lost_with_its_worker_is_truncated_without_a_result() -> None:
    envs, fates = make(), Fates()
    recipe = EnvRecipe(tiny_task(), EpisodeSettings(length=4), 0, "loop", None)
    envs._env = WorkerPool(recipe, 3, 2, start=fates.start)
    envs.reset(seed=0)
    last, *_ = envs.step(WAIT)
    fates.doom = Command.STEP
    observations, rewards, terminated, truncated, info = envs.step(WAIT)
    assert truncated.tolist() == info["dropped"].tolist() == info["_final_obs"].tolist() == [True, False, False]
    assert not terminated.any()
    assert not info["_final_info"].any()
    assert np.array_equal(info["final_obs"][0], last[0])
    assert not np.array_equal(observations[0], last[0])
    assert rewards[0] == 0
