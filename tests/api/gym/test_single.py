"""`gymnasium.make("esper/Growth-v0")`: one host by Gymnasium's rules."""

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

import esper
from esper.api.gym import GrowthGymEnv
from esper.leyline import NUM_OPS, Op
from tests.worlds import slots_of, tiny_task

WAIT = np.zeros(4, dtype=np.int64)
CULL = np.array([0, 0, 0, Op.CULL])
HEADS = {"slot", "blueprint", "blend", "op"}


def make(**options: Any) -> gymnasium.Env[Any, Any]:
    settings: dict[str, Any] = {"task": tiny_task(), "episode_length": 5} | options
    return gymnasium.make("esper/Growth-v0", **settings)


@pytest.mark.parametrize("flat_actions", [False, True])
def test_the_environment_passes_the_checker(flat_actions: bool) -> None:
    check_env(make(flat_actions=flat_actions).unwrapped)


def test_importing_esper_is_enough_and_does_not_import_torch() -> None:
    script = (
        "import sys, esper, gymnasium; assert 'torch' not in sys.modules; "
        "env = gymnasium.make('esper/Growth-v0', task='digits', episode_length=1); env.reset(seed=0); env.close()"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_seed_gives_the_episodes_of_make_env_and_no_seed_others() -> None:
    env, core = make(), esper.make_env(tiny_task(), envs=1, episode_length=5, seed=7)
    first, _ = env.reset(seed=7)
    assert np.array_equal(first, core.reset()[0][0].numpy())
    second, _ = env.reset()
    assert np.array_equal(second, core.reset()[0][0].numpy())
    assert not np.array_equal(first, second)
    again, _ = env.reset(seed=7)
    assert np.array_equal(first, again)
    # Untrained hosts often score alike, so two would not tell.
    assert len({tuple(make().reset()[0].tolist()) for _ in range(8)}) > 1


def test_an_episode_is_truncated_at_its_length_and_tells_what_it_grew() -> None:
    env = make(price=0.5)
    core = esper.make_env(tiny_task(), envs=1, episode_length=5, seed=1, price=0.5)
    env.reset(seed=1)
    core.reset()
    for step in range(5):
        _, reward, terminated, truncated, info = env.step(WAIT)
        expected = core.step(torch.zeros((1, 4), dtype=torch.int64))
        assert reward == pytest.approx(float(expected.rewards[0]))
        assert (terminated, truncated) == (False, step == 4)
        assert ("objective" in info) is truncated
    (result,) = core.results()
    assert info["objective"] == pytest.approx(result.val_objective)
    assert info["val_score"] == pytest.approx(result.val_score)
    assert (info["parameters"], info["added_parameters"]) == (result.host_params, 0)


def test_the_governor_terminates() -> None:
    env = make(task=tiny_task(optimizer=type(tiny_task().optimizer)(lr=float("inf"))))
    env.reset(seed=0)
    for _ in range(3):
        _, _, terminated, truncated, info = env.step(WAIT)
    assert terminated
    assert not truncated
    assert np.isfinite(info["objective"])


def test_an_illegal_action_becomes_wait_and_is_told() -> None:
    env, other = make(), make()
    env.reset(seed=2)
    other.reset(seed=2)
    culled, *_, info = env.step(CULL)
    waited, *_, legal_info = other.step(WAIT)
    assert info["illegal_action"] is True
    assert legal_info["illegal_action"] is False
    assert np.array_equal(culled, waited)


def test_masks_are_in_the_info_and_behind_the_method_of_sb3() -> None:
    env = make(flat_actions=True)
    _, info = env.reset(seed=0)
    assert set(info["masks"]) == HEADS
    assert info["masks"]["slot"].shape == (NUM_OPS, slots_of(tiny_task()))
    assert info["action_mask"].dtype == np.bool_
    assert np.array_equal(env.get_wrapper_attr("action_masks")(), info["action_mask"])
    assert isinstance(env.action_space, gymnasium.spaces.Discrete)
    action = env.action_space.sample(mask=info["action_mask"].astype(np.int8))
    assert env.step(action)[-1]["illegal_action"] is False


def test_masked_random_actions_are_never_illegal() -> None:
    env = GrowthGymEnv(tiny_task(), flat_actions=True)
    _, info = env.reset(seed=3)
    env.action_space.seed(3)
    truncated, grown = False, 0
    while not truncated:
        observation, _, _, truncated, info = env.step(env.action_space.sample(mask=info["action_mask"].astype(np.int8)))
        assert observation in env.observation_space
        assert not info["illegal_action"]
        grown += int(info["masks"]["op"][Op.CULL])
    assert grown > 0


def test_the_name_with_a_module_needs_no_import() -> None:
    script = "import gymnasium; gymnasium.make('esper:esper/Growth-v0', task='digits', episode_length=1).reset(seed=0)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
