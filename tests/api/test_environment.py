"""`make_env`: observations, rewards and masks of many hosts, repeatable and restorable."""

import io

import pytest
import torch
from torch import Tensor

import esper
from esper.kasmina import num_blueprints
from esper.leyline import NUM_BLENDS, NUM_OPS, IllegalActionError, InputError, Op
from esper.nissa import Hub
from esper.simic.control import observation_width
from esper.simic.training import EnvRecipe
from esper.tamiyo import Random
from esper.tolaria import ComputeSettings, EpisodeSettings, GrowthEnv, Shard
from esper.tolaria.executors import DeviceExecutor
from tests.worlds import host_task, slots_of, tiny_task


def play(env: GrowthEnv, steps: int, dice_seed: int = 0) -> list[Tensor]:
    """Random legal actions; returns everything that was seen."""
    dice = Random()
    dice.reset(env.num_envs, dice_seed)
    seen = []
    for _ in range(steps):
        step = env.step(dice.decide(env.population.situation))
        seen += [step.observations, step.rewards, step.masks.slot]
    return seen


def test_shapes_are_as_documented() -> None:
    env, slots = esper.make_env(tiny_task(), envs=3, seed=1, executor="loop"), slots_of(tiny_task())
    observations, masks = env.reset()
    assert observations.shape == (3, observation_width(slots))
    assert (masks.op.shape, masks.slot.shape) == ((3, NUM_OPS), (3, NUM_OPS, slots))
    assert (masks.blueprint.shape, masks.blend.shape) == ((3, slots, num_blueprints()), (3, NUM_BLENDS))
    step = env.step(torch.zeros((3, 4), dtype=torch.int64))
    assert step.observations.shape == observations.shape
    assert step.rewards.shape == step.terminated.shape == step.truncated.shape == (3,)
    assert not step.observations.isnan().any()


def test_rewards_of_an_episode_sum_to_the_change_of_the_objective() -> None:
    env = esper.make_env(tiny_task(), envs=4, seed=2, executor="stacked", price=(0.01, 0.1))
    env.reset()
    start = env.population.situation.score.double()
    dice = Random()
    dice.reset(4, 0)
    total = torch.zeros(4, dtype=torch.float64)
    while not env.population.done:
        total += env.step(dice.decide(env.population.situation)).rewards
    end = torch.tensor([result.val_objective for result in env.population.results()], dtype=torch.float64)
    assert torch.allclose(total, end - start, atol=1e-5)


def test_a_host_has_the_same_episode_whatever_the_number_of_hosts() -> None:
    few, many = (esper.make_env(tiny_task(), envs=envs, seed=5, executor="loop") for envs in (1, 3))
    for _ in range(2):  # the second episode is another one, but the same for both
        first, _ = few.reset()
        among, _ = many.reset()
        assert torch.equal(first[0], among[0])
        for _ in range(4):
            one = few.step(torch.tensor([[0, 0, 0, Op.WAIT]]))
            three = many.step(torch.zeros((3, 4), dtype=torch.int64))
            assert torch.equal(one.observations[0], three.observations[0])


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_an_environment_goes_on_bit_for_bit_from_the_middle_of_an_episode(executor: str) -> None:
    env = esper.make_env(host_task("conv1d"), envs=2, seed=3, executor=executor)
    env.reset()
    play(env, 7)
    file = io.BytesIO()
    torch.save(env.state_dict(), file)
    expected = play(env, 9, dice_seed=1)
    file.seek(0)
    other = esper.make_env(host_task("conv1d"), envs=2, seed=99, executor=executor)
    other.load_state_dict(torch.load(file, weights_only=True))
    for a, b in zip(expected, play(other, 9, dice_seed=1), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(env.reset()[0], other.reset()[0])  # the episodes after it are the same too


def test_single_hosts_can_be_reset() -> None:
    env = esper.make_env(tiny_task(), envs=2, episode_length=5, executor="loop")
    env.reset()
    play(env, 2)
    env.reset(hosts=[1])
    assert env.population.signals.epoch.tolist() == [2, 0]


def test_illegal_actions_raise_and_change_nothing() -> None:
    env = esper.make_env(tiny_task(), envs=2, executor="loop")
    env.reset()
    with pytest.raises(IllegalActionError, match="CULL"):
        env.step(torch.tensor([[0, 0, 0, Op.WAIT], [0, 0, 0, Op.CULL]]))
    assert env.population.signals.epoch.tolist() == [0, 0]


def test_bad_arguments_name_the_field() -> None:
    with pytest.raises(InputError, match="unknown task"):
        esper.make_env("mnist2d")
    with pytest.raises(InputError, match="envs must be 1 or more"):
        esper.make_env(tiny_task(), envs=0)
    with pytest.raises(InputError, match="seed must be 0 or more"):
        esper.make_env(tiny_task(), seed=-1)
    with pytest.raises(InputError, match="episode length"):
        esper.make_env(tiny_task(), episode_length=0)
    with pytest.raises(InputError, match="workers must be 0 or more"):
        esper.make_env(tiny_task(), workers=-1)
    with pytest.raises(InputError, match="'own' cannot be sent to workers"):
        esper.make_env(tiny_task(name="own", load=lambda: tiny_task().splits()), executor="loop", workers=2)
    with pytest.raises(InputError, match="unknown executor 'warp'"):
        esper.make_env(tiny_task(), executor="warp", workers=2)
    with pytest.raises(InputError, match="workers must be 1 to the number of hosts, 2; got 3"):
        esper.make_env(tiny_task(), envs=2, executor="loop", workers=3)
    with pytest.raises(AttributeError, match="no attribute"):
        _ = esper.make_envs


def test_hosts_compute_as_asked() -> None:
    compute = ComputeSettings(precision="bfloat16", devices=("cpu", "cpu"))
    env = esper.make_env(tiny_task(), envs=2, compute=compute)
    env.reset()
    assert env.population.settings.compute == compute
    assert isinstance(env.population.executor, DeviceExecutor)
    for workers in (1, 2):
        with pytest.raises(InputError, match="'stacked' computes in float32"):
            esper.make_env(tiny_task(), envs=2, executor="stacked", compute=compute, workers=workers)


def test_hosts_are_counted_from_the_first_of_their_part() -> None:
    whole = esper.make_env(tiny_task(), envs=3, seed=5, executor="loop")
    recipe = EnvRecipe(tiny_task(), EpisodeSettings(), 5, "loop", None)
    part = recipe(Shard(1, 2), Hub())
    assert torch.equal(whole.reset()[0][1:], part.reset()[0])


def test_one_worker_is_this_process() -> None:
    assert isinstance(esper.make_env(tiny_task(), envs=2, executor="loop", workers=1), GrowthEnv)
