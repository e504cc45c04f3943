"""Hosts of several shapes in one run: padded for the policy, and otherwise what they are alone."""

from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import torch

import esper
from esper.kasmina import num_blueprints
from esper.leyline import InputError, SlotConfig
from esper.simic.config import TrainingConfig
from esper.simic.control import esper_action_spec
from esper.simic.control.anatomy import Anatomy, observe_anatomy
from esper.simic.training import GrowthWorld, InterruptedRunError, Trainer, collect_round, load_controller
from esper.tamiyo import run_episodes
from esper.tolaria import EpisodeSettings
from tests.simic.training.runs import assert_same_run, tiny_config
from tests.worlds import TINY, host_task, tiny_task

SMALL = f"{TINY}@widths=4"
"""Fewer slots than the hosts of `TINY`."""


def mixed_config(**overrides: Any) -> TrainingConfig:
    settings = {"tasks": (SMALL, TINY), "envs": 3, "rounds": 2, "architecture": "pointing", "episode_length": 6}
    return tiny_config(**(settings | overrides))


def test_hosts_of_fewer_slots_are_padded_and_nothing_is_legal_there() -> None:
    world = GrowthWorld(mixed_config(twins=False))
    observations, masks = world.reset(0)
    small, large = world.situations().values()
    slots = small.table.shape[1]
    assert slots < large.table.shape[1] == world.num_slots
    anatomy = Anatomy(world.num_slots, num_blueprints())
    assert torch.equal(observations[:3], anatomy.pad(observe_anatomy(small)))
    assert torch.equal(observations[3:], observe_anatomy(large))
    assert torch.equal(masks["slot"][:3, :, :slots], small.masks.slot)
    assert torch.equal(masks["blueprint"][:3, :slots], small.masks.blueprint)
    assert not masks["slot"][:3, :, slots:].any()
    assert not masks["blueprint"][:3, slots:].any()


def test_hosts_of_more_tasks_than_workers_run_in_this_process() -> None:
    before = active_children()
    world = GrowthWorld(mixed_config(tasks=(SMALL, TINY, "digits"), workers=2, twins=False))
    try:
        assert active_children() == before
        observations, _ = world.reset(0)
        assert len(observations) == 9
    finally:
        world.close()


def test_a_policy_plays_all_shapes_and_learns_from_what_it_was_shown() -> None:
    trainer = Trainer(mixed_config())
    agent = trainer.agent
    tally = collect_round(agent, trainer.world, 0)
    assert tally.means()["ops"]["GERMINATE"] > 0
    # Replayed under the same weights, every decision has the probability that it was drawn with.
    batch = agent.buffer.get_batched_sequences()
    seen = agent.policy.network.evaluate_actions(batch.obs, batch.actions, batch.selected, batch.hidden)
    torch.testing.assert_close(seen.log_probs[batch.active], batch.old_log_probs[batch.active], atol=1e-4, rtol=1e-4)
    before = [parameter.detach().clone() for parameter in agent.policy.network.parameters()]
    metrics = agent.update()
    assert metrics["optimizer_steps"] > 0
    assert metrics["joint_kl"] < 1.0
    assert any(not torch.equal(a, b) for a, b in zip(before, agent.policy.network.parameters(), strict=True))


def test_a_run_over_several_shapes_resumes_bit_for_bit_and_grows_hosts_of_others(tmp_path: Path) -> None:
    config = mixed_config(executor="native", teacher="heuristic", lessons=1, lesson_passes=2)
    esper.train(config, tmp_path / "straight")
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 60

    with pytest.raises(InterruptedRunError):
        esper.train(config, tmp_path / "cut", should_stop=stop)
    esper.train(config, tmp_path / "cut", resume=True)
    assert_same_run(tmp_path / "straight", tmp_path / "cut")
    # Shapes, families and numbers of slots that the run has never seen.
    controller = load_controller(tmp_path / "cut")
    for task in (tiny_task(host_settings={"inputs": 6, "widths": (4,) * 5, "classes": 3}), host_task("conv2d")):
        (result,) = run_episodes(task, controller, [0], EpisodeSettings(length=4), executor="loop", test=False)
        assert 0 <= result.val_score <= 1


def test_the_flat_network_says_which_one_takes_several_shapes() -> None:
    with pytest.raises(
        InputError, match=r"same number of slots for learner.architecture=flat; these have: tiny-blobs 7"
    ):
        GrowthWorld(mixed_config(architecture="flat"))


def test_a_controller_of_the_flat_network_still_needs_its_number_of_slots() -> None:
    trainer = Trainer(tiny_config())
    with pytest.raises(InputError, match="decides for 7 slots alone"):
        trainer.agent.policy.for_spec(esper_action_spec(SlotConfig.of_size(3)))
