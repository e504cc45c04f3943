"""Tiny runs, and what they leave."""

import json
from pathlib import Path
from typing import Any

import torch

from esper.simic.training import RunFolder, TrainingConfig, load_controller
from tests.simic.builders import config_of
from tests.worlds import TINY


def tiny_config(**overrides: Any) -> TrainingConfig:
    settings: dict[str, Any] = {
        "tasks": (TINY,),
        "envs": 4,
        "rounds": 4,
        "episode_length": 8,
        "executor": "native",
        "validation_episodes": 2,
        "validate_every": 2,
        "lstm_hidden_dim": 16,
        "num_minibatches": 2,
        "teacher": None,
    }
    return config_of(**(settings | overrides))


def final_weights(folder: Path) -> list[torch.Tensor]:
    newest = RunFolder(folder).newest()
    assert newest is not None
    return list(load_controller(newest).policy.network.state_dict().values())


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def assert_same_run(folder: Path, other: Path) -> None:
    assert all(torch.equal(a, b) for a, b in zip(final_weights(folder), final_weights(other), strict=True))
    histories = [json.loads((path / "summary.json").read_text())["history"] for path in (folder, other)]
    assert histories[0] == histories[1]
