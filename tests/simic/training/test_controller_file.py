"""A controller in a file: it decides as before, for any host, and a file that is not whole says so."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from esper.leyline import InputError
from esper.simic.training import LearnedController, Trainer, about_controller, pack_controller, read_controller
from esper.tamiyo import run_episode
from tests.simic.training.runs import tiny_config
from tests.worlds import host_task, tiny_task


@pytest.fixture(scope="module")
def controller() -> LearnedController:
    """One that plants something, and whose statistics are not those it began with."""
    torch.manual_seed(0)
    options = {"architecture": "pointing", "op_bias": (0.0, 3.0, 2.0, -3.0), "num_minibatches": None}
    trainer = Trainer(tiny_config(envs=2, **options))
    policy = trainer.agent.policy
    assert policy.normalizer is not None
    policy.normalizer.update(torch.rand(50, policy.network.state_dim))
    return LearnedController(policy)


@pytest.fixture
def file(controller: LearnedController, tmp_path: Path) -> Path:
    path = tmp_path / "controller.safetensors"
    path.write_bytes(pack_controller(controller.policy, ["features"], {"seed": "3"}))
    return path


@pytest.mark.parametrize(
    "task", [tiny_task(), host_task("conv1d", host_settings={"channels": (4, 5), "classes": 3})], ids=["mlp", "conv1d"]
)
def test_a_controller_decides_as_before_it_was_packed(task: Any, controller: LearnedController, file: Path) -> None:
    again = read_controller(file)
    results = [run_episode(task, one, seed=3) for one in (controller, again)]
    assert results[0] == results[1]
    assert results[0].kept
    assert again.trained_on == ("features",)
    assert about_controller(file) == {"seed": "3"}


def test_a_policy_for_one_number_of_slots_is_not_packed() -> None:
    with pytest.raises(InputError, match="only a controller for any host can be packed"):
        pack_controller(Trainer(tiny_config(envs=2)).agent.policy, [], {})


def _header(data: bytes) -> dict[str, str]:
    told: dict[str, str] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    return told


def _with_header(**changed: str) -> Callable[[bytes], bytes]:
    return lambda data: save(load(data), {**_header(data), **changed})


def _with_settings(**changed: Any) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        settings = json.loads(_header(data)["settings"])
        return _with_header(settings=json.dumps({**settings, **changed}))(data)

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[: len(data) // 2], "is cut short or is no controller"),
        (lambda data: b"", "is cut short or is no controller"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "its contents do not match its checksum"),
        (lambda data: save({"weight": torch.zeros(2)}), "is not a controller of Esper"),
        (_with_header(version="2"), "has controller version '2'; this Esper reads version 1"),
        (_with_settings(sizes={"lstm_hidden_dim": 8, "lstm_layers": 1}), "do not match its checksum"),
    ],
)
def test_a_file_that_is_not_whole_is_refused_in_a_sentence(
    damage: Callable[[bytes], bytes], message: str, file: Path
) -> None:
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InputError, match=message) as refused:
        read_controller(file)
    assert str(file) in str(refused.value)
    assert "or use the heuristic" in str(refused.value)


def test_a_controller_that_observes_other_things_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.simic.training.controller_file.BLOCKS", ())
    with pytest.raises(InputError, match="an Esper that observes other things"):
        read_controller(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.safetensors cannot be read \(No such file"):
        read_controller(tmp_path / "none.safetensors")
