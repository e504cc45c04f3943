"""An agent on another device than the CPU: it plays, learns, is saved and loaded there, and mixes no devices."""

import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from esper.leyline import InputError
from esper.simic.agent import (
    PPOAgent,
    load_checkpoint,
    optimization,
    save_checkpoint,
)
from esper.simic.agent.cloning import clone
from esper.simic.config import LessonConfig
from esper.simic.telemetry import TelemetryConfig, UpdateWatcher
from esper.tolaria.compute import find_device
from esper_lab.player import Player
from esper_lab.worlds import ToyStep
from tests.second_device import SECOND, SecondDevice
from tests.simic.builders import RandomWorld, agent_with_round, make_agent, parameters_of

THERE = str(SECOND)
STEPS = 4


class CpuWorld(RandomWorld):
    """Looks where its actions are."""

    def step(self, actions: Tensor) -> ToyStep:
        assert actions.device.type == "cpu"
        return super().step(actions)


def play_and_learn(agent: PPOAgent, rounds: int) -> Tensor:
    """The parameters after some rounds, copied to the CPU; everything that can look on looks on."""
    agent.telemetry_config = TelemetryConfig("debug")
    agent.observer = watcher = UpdateWatcher(agent, agent.telemetry_config, 2.0, 0.5)
    player = Player(agent, CpuWorld(agent.num_envs))
    for _ in range(rounds):
        player.fill_buffer()
        agent.update()
        assert watcher.take_debug_records(watcher.take_gradients()) is not None
    return parameters_of(agent).cpu()


@pytest.mark.parametrize(
    "options",
    [
        {"num_minibatches": 2, "epochs": 2, "weight_decay": 0.01, "head_lr_scale": {"op": 0.5}},
        {"adaptive_entropy_floor": True, "decay_steps": 0, "grad_clip_mode": "global", "lstm_layers": 2},
        {"value_loss_type": "huber", "clip_value": False, "scale_values": False, "hidden_storage": "first"},
    ],
)
@pytest.mark.usefixtures("second_device")
def test_an_agent_learns_the_same_on_another_device(options: dict[str, Any]) -> None:
    agents = [agent_with_round(device=device, max_steps=STEPS, normalize=True, **options) for device in (THERE, "cpu")]
    assert torch.equal(agents[0].buffer.actions.cpu(), agents[1].buffer.actions)  # a seed means the same everywhere
    learned = []
    for agent in agents:
        torch.manual_seed(1)
        clone(agent, LessonConfig(passes=1, lr=1e-3, op_smoothing=0.1, detail_smoothing=0.1))
        agent.update()
        learned.append(play_and_learn(agent, 1))
    torch.testing.assert_close(*learned, rtol=1e-4, atol=1e-5)


def tensors_of(agent: PPOAgent) -> Iterator[tuple[str, Tensor]]:
    yield from agent._base_network.state_dict().items()
    yield from agent.buffer.masks.items()
    yield from agent.policy.return_scale.state_dict().items()
    for spec in fields(agent.buffer):
        value = getattr(agent.buffer, spec.name)
        if isinstance(value, Tensor):
            yield spec.name, value
    for state in agent.optimizer.state.values():
        yield "exp_avg", state["exp_avg"]
    for batch in agent.memory.state_dict():
        yield from ((f"remembered {name}", value) for name, value in batch.items() if isinstance(value, Tensor))


def elsewhere(agent: PPOAgent) -> set[str]:
    return {name for name, tensor in tensors_of(agent) if str(tensor.device) != agent.device}


@pytest.mark.usefixtures("second_device")
def test_everything_lives_on_the_device_of_the_agent(tmp_path: Path) -> None:
    agent = make_agent(device=THERE, max_steps=STEPS, value_memory=2, num_minibatches=2)
    learned = play_and_learn(agent, 3)
    assert learned.isfinite().all()
    lengths = {"step_counts", "remembered lengths"}  # of loops, and so where the loops are
    assert elsewhere(agent) == lengths
    assert agent.initial_hidden(2)[0].device == SECOND
    save_checkpoint(tmp_path / "agent.pt", agent)
    for device, others in ((THERE, lengths), ("cpu", set())):
        loaded, _ = load_checkpoint(tmp_path / "agent.pt", device)
        assert (loaded.device, elsewhere(loaded)) == (device, others)


def test_playing_reads_three_numbers_a_step(second_device: SecondDevice) -> None:
    """Whether the logits are finite, whether every head had a choice, and the actions."""
    agent, world = make_agent(device=THERE), RandomWorld()
    player = Player(agent, world)
    before = second_device.reads
    player.fill_buffer()
    assert second_device.reads - before == 3 * agent.max_steps


@pytest.mark.usefixtures("second_device")
def test_whole_episodes_are_played_on_another_device() -> None:
    assert len(Player(make_agent(device=THERE), CpuWorld(end_rate=0.5)).returns(4)) == 4


@pytest.mark.parametrize("stored_on", ["cpu", THERE])
@pytest.mark.usefixtures("second_device")
def test_a_buffer_takes_steps_from_any_device(stored_on: str) -> None:
    buffer, acting = make_agent(device=stored_on).buffer, make_agent(device=THERE)
    obs, masks = RandomWorld().reset()
    there = {name: mask.to(SECOND) for name, mask in masks.items()}
    decision = acting.act(obs.to(SECOND), there, acting.initial_hidden())
    no, active = torch.zeros(4, dtype=torch.bool), torch.tensor([True, True, False, True])
    for place in ("cpu", THERE):
        buffer.clear()
        some = obs.to(place), masks, acting.initial_hidden(), decision, torch.ones(4), no.to(place), no
        buffer.add_step(*some, active=active.to(place))
        assert str(buffer.valid.device) == stored_on
        assert buffer.valid[:, 0].tolist() == active.tolist()
        assert torch.equal(buffer.obs[:, 0].cpu(), obs)
        assert torch.equal(buffer.actions[:, 0].cpu(), decision.actions.cpu())


@pytest.mark.parametrize(
    ("saved_on", "loaded_on", "kernels"),
    [
        (THERE, "cpu", ("fused", "foreach")),
        ("cpu", THERE, ("foreach", "fused")),
        (THERE, THERE, ("foreach", "foreach")),
    ],
)
@pytest.mark.usefixtures("second_device")
def test_a_checkpoint_goes_on_on_another_device(
    tmp_path: Path, saved_on: str, loaded_on: str, kernels: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from a device with a fused optimiser, as on CUDA, to one without, and back."""
    torch_optimizer = sys.modules[torch.optim.Optimizer.__module__]
    monkeypatch.setattr(torch_optimizer, "_get_fused_kernels_supported_devices", lambda: ["cpu", SECOND.type])
    before, after = ({name: name == kernel or None for name in ("fused", "foreach")} for kernel in kernels)
    monkeypatch.setattr(optimization, "adam_kernels", lambda _: before)
    agent = agent_with_round(device=saved_on, max_steps=STEPS)
    agent.update()
    save_checkpoint(tmp_path / "agent.pt", agent)
    monkeypatch.setattr(optimization, "adam_kernels", lambda _: after)
    loaded, _ = load_checkpoint(tmp_path / "agent.pt", loaded_on)
    assert loaded.device == loaded_on
    assert torch.equal(parameters_of(loaded).cpu(), parameters_of(agent).cpu())
    assert after.items() <= loaded.optimizer.param_groups[0].items()
    learned = []
    for each in (agent, loaded):
        torch.manual_seed(1)
        learned.append(play_and_learn(each, 1))
    torch.testing.assert_close(*learned, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7", "tpu", "", "cpu:0"])
def test_a_device_that_is_not_there_is_one_clear_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InputError, match=rf"^unknown device '{name}'; choose one of: cpu$"):
        make_agent(device=name)


def test_a_device_of_a_machine_with_some_is_named_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match=r"^unknown device 'cuda:7'; choose one of: cpu, cuda:0, cuda:1$"):
        make_agent(device="cuda:7")
    assert [str(find_device(name)) for name in ("cpu", "cuda", "cuda:1")] == ["cpu", "cuda:0", "cuda:1"]


@pytest.mark.parametrize(("available", "chosen"), [(True, "cuda:0"), (False, "cpu")])
def test_only_auto_chooses(available: bool, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert str(find_device("auto")) == chosen
