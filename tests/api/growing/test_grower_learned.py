"""A learned controller from a file decides like any other."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import esper
from esper.kasmina import take_snapshot
from esper.leyline import InputError
from esper.simic.agent import PPOAgent
from esper.simic.agent.checkpoint import save_checkpoint
from esper.simic.config import LearnerConfig
from esper.simic.control import observation_width
from esper.simic.control.observing import state_dim
from esper.simic.training import pack_controller
from tests.api.growing.builders import assert_same, grow, make_grower

SLOTS = 3


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    agent = PPOAgent(LearnerConfig(lstm_hidden_dim=8, device="cpu"), state_dim=observation_width(SLOTS), normalize=True)
    save_checkpoint(tmp_path / "controller.pt", agent)
    return str(tmp_path / "controller.pt")


def deep() -> nn.Sequential:
    layers = [part for _ in range(4) for part in (nn.Linear(6, 6), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(6, 3))


def make(checkpoint: str, **overrides: Any) -> esper.Grower:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"model": deep(), "at": "auto", "controller": checkpoint, **overrides}
    return make_grower(**settings)


def test_it_decides_in_as_many_slots_as_it_knows(checkpoint: str) -> None:
    grower = make(checkpoint)
    assert len(grower.grafted.sites) == SLOTS
    assert len(grow(grower, 6)) == 6


def test_another_number_of_slots_is_refused_at_once(checkpoint: str) -> None:
    with pytest.raises(InputError, match="was trained for 3 slots; here are 2: 1, 3"):
        make(checkpoint, at=["1", "3"])


def test_its_memory_is_saved_with_the_growth(checkpoint: str, tmp_path: Path) -> None:
    grower = make(checkpoint)
    grow(grower, 4)
    grower.save(tmp_path / "growth.pt")
    expected = [str(decision) for decision in grow(grower, 6)]
    resumed = make(checkpoint)
    resumed.load(tmp_path / "growth.pt")
    assert [str(decision) for decision in grow(resumed, 6)] == expected
    assert_same(take_snapshot(resumed.grafted).tensors, take_snapshot(grower.grafted).tensors)
    assert_same(resumed.state_dict()["controller"]["hidden"], grower.state_dict()["controller"]["hidden"])


def test_a_network_that_passes_on_what_it_was_not_trained_on_is_told(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    config = LearnerConfig(lstm_hidden_dim=8, device="cpu", architecture="pointing")
    agent = PPOAgent(config, state_dim=state_dim("pointing", SLOTS), normalize=True)
    for trained_on in (["conv1d"], ["conv1d", "features"]):
        file = tmp_path / f"{len(trained_on)}.safetensors"
        file.write_bytes(pack_controller(agent.policy, trained_on, {}))
    make(str(tmp_path / "2.safetensors"))
    assert not recwarn
    with pytest.warns(UserWarning, match="trained on networks that pass on conv1d; this one passes on features"):
        make(str(tmp_path / "1.safetensors"))


def test_a_step_counts_as_a_pass_over_the_data_where_their_number_is_known(checkpoint: str) -> None:
    assert make(checkpoint, epochs=12).situation.passes == 12.0
    assert math.isnan(make(checkpoint, epochs=None).situation.passes)
