"""Training a controller on another device than the CPU, while its hosts stay on the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import esper
from esper.leyline import EventType, InputError
from esper.nissa import Hub, MemorySink
from esper.simic.training import RunFolder, Trainer, TrainingConfig, collect_round, load_controller
from esper.tamiyo import run_episode
from esper.tolaria import EpisodeSettings, compute
from tests.second_device import SECOND, SecondDevice
from tests.simic.builders import normalizer_of, parameters_of
from tests.simic.training.runs import tiny_config
from tests.worlds import tiny_task

THERE = str(SECOND)


def short_config(device: str, **overrides: Any) -> TrainingConfig:
    settings: dict[str, Any] = {"envs": 2, "rounds": 1, "episode_length": 5, "validation_episodes": 1}
    return tiny_config(device=device, **settings | overrides)


@contextmanager
def machine_with(device: str) -> Iterator[None]:
    """Where `device` is; the CPU alone is faster without the other one."""
    with pytest.MonkeyPatch.context() as patch, SecondDevice() if device == THERE else nullcontext():
        patch.setattr(compute, "present_devices", lambda: ["cpu", device])
        yield


SEARCHING = {
    "teacher": "search",
    "architecture": "pointing",
    "search_episodes": 32,
    "search_final_seeds": 4,
    "price": 0.03,
    "episode_length": 9,
    "executor": "native",
}


@pytest.mark.parametrize("options", [{"teacher": "schedule"}, SEARCHING], ids=["cloned", "distilled"])
def test_a_whole_run_with_lessons_is_the_same_on_another_device(options: dict[str, Any]) -> None:
    runs = []
    for device in (THERE, "cpu"):
        with machine_with(device):
            sink = MemorySink()
            config = short_config(device, lesson_passes=1, telemetry="debug", **options)
            trainer = Trainer(config, hub=Hub([sink]))
            summary = trainer.run()
        assert str(normalizer_of(trainer.agent).device) == device
        assert EventType.LESSON_COMPLETED in [event.event_type for event in sink.events]
        runs.append([*summary.history[0]["objective"].values(), summary.best_objective])
    assert runs[0] == pytest.approx(runs[1])


def test_a_run_goes_on_on_another_device_and_comes_back(tmp_path: Path) -> None:
    out = tmp_path / "run"
    esper.train(short_config("cpu", value_memory=1), out)
    for rounds, device in ((2, THERE), (3, "cpu")):
        with machine_with(device):
            config = short_config(device, value_memory=1, rounds=rounds, validate_every=0)
            trainer = Trainer(config, RunFolder(out), resume=True)
            assert (trainer.agent.device, str(normalizer_of(trainer.agent).device)) == (device, device)
            assert len(trainer.run().history) == rounds
            assert parameters_of(trainer.agent).isfinite().all()


def test_a_round_reads_three_numbers_a_step(second_device: SecondDevice) -> None:
    """Whether the logits are finite, whether every head had a choice, and the actions; nothing more for rewards."""
    reward = replace(short_config("cpu").reward, horizon_is_terminal=False)
    trainer = Trainer(short_config(THERE, horizon_is_terminal=False, reward=reward))
    before = second_device.reads
    collect_round(trainer.agent, trainer.world, 0)
    assert second_device.reads - before == 3 * 5
    assert trainer.agent.buffer.valid.all()


def test_a_learned_controller_decides_the_same_on_any_device(tmp_path: Path) -> None:
    esper.train(short_config("cpu"), tmp_path / "run")
    here = load_controller(tmp_path / "run")
    settings = EpisodeSettings(length=5)
    expected = run_episode(tiny_task(), here, 0, settings)
    with machine_with(THERE):
        there = load_controller(tmp_path / "run", THERE)
        assert run_episode(tiny_task(), there, 0, settings) == expected
        here.load_state_dict(there.state_dict())
        there.load_state_dict(here.state_dict())
        assert there._hidden[0].device == SECOND
    assert here._hidden[0].device.type == "cpu"


def test_a_run_on_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match=r"^unknown device 'cuda:3'; choose one of: cpu, cuda:0$"):
        esper.train(short_config("cuda:3"))
