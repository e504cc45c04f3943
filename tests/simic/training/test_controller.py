"""The learned controller: it decides like any other, and takes back what it remembered and nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch

import esper
from esper.leyline import InputError
from esper.simic.training import LearnedController, Trainer, load_controller
from esper.tamiyo import run_episode
from tests.simic.training.runs import tiny_config
from tests.worlds import TINY, slots_of, tiny_task


def test_a_controller_takes_back_its_own_memory_and_refuses_any_other() -> None:
    trainer = Trainer(tiny_config(envs=2))
    controller = LearnedController(trainer.agent.policy)
    run_episode(tiny_task(episode_length=2), controller, seed=0)
    remembered = controller.state_dict()
    controller.reset(1, 0)
    controller.load_state_dict(remembered)
    assert all(map(torch.equal, controller.state_dict()["hidden"], remembered["hidden"]))
    h, c = remembered["hidden"]
    wrong: list[tuple[Any, str]] = [
        ({}, "controller lacks hidden"),
        ({"hidden": [h]}, "controller.hidden must be a list of 2"),
        ({"hidden": [h, c[:, :, :-1]]}, "controller.hidden must have shape"),
        ({"hidden": [h, c * torch.nan]}, "controller.hidden holds NaN"),
    ]
    for state, message in wrong:
        with pytest.raises(InputError, match=message):
            controller.load_state_dict(state)
        assert all(map(torch.equal, controller.state_dict()["hidden"], remembered["hidden"]))


def test_the_controller_of_a_run_decides_like_any_other(straight: Path) -> None:
    controller = load_controller(straight)
    assert isinstance(controller, LearnedController)
    first, second = (run_episode(tiny_task(), controller, seed=3) for _ in range(2))
    assert first == second


def test_a_controller_refuses_hosts_with_another_number_of_slots(straight: Path) -> None:
    small = tiny_task(host_settings={"inputs": 6, "widths": (4, 4), "classes": 3})
    with pytest.raises(InputError, match=f"trained for {slots_of(tiny_task())} slots; the host has {slots_of(small)}"):
        run_episode(small, load_controller(straight), seed=0)


def test_evaluation_reads_the_test_split_over_paired_seeds(straight: Path) -> None:
    never = esper.evaluate("never", TINY, range(3), executor="loop")
    learned = esper.evaluate(str(straight), TINY, range(3), executor="loop")
    assert learned.gain_over(never).mean == pytest.approx(learned.objective.mean - never.objective.mean)
    assert never.parameters.mean == never.results[0].host_params
    with pytest.raises(InputError, match="unknown controller 'nobody'; choose one of: never, random"):
        esper.evaluate("nobody", TINY, [0])


def test_a_cut_checkpoint_gives_one_clear_error(straight: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.pt"
    cut.write_bytes((straight / "checkpoints" / "best.pt").read_bytes()[:1000])
    with pytest.raises(InputError, match="is cut short or is no checkpoint"):
        load_controller(cut)
