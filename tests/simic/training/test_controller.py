"""The learned controller: what it remembers of an episode is saved, and nothing else is taken for it."""

from typing import Any

import pytest
import torch

from esper.leyline import InputError
from esper.simic.training import LearnedController, Trainer
from esper.tamiyo import run_episode
from tests.simic.training.test_vectorized import tiny_config
from tests.worlds import tiny_task


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
