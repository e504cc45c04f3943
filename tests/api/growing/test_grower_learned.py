"""A learned controller from a file decides like any other."""

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
