"""Saving and loading an agent: one plain dictionary with explicit keys, written atomically, loaded without pickle.

Versions of the format:
0: before slot configurations were stored; the architecture had to be inferred from the weights. No such file exists.
1: action heads, slot configuration, state_dim and all options are stored as plain data.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from esper.leyline import InputError, SlotConfig, write_atomically
from esper.nissa import pack_state, read_state
from esper.simic.agent.network import FactoredRecurrentActorCritic
from esper.simic.agent.optimizer import restore_optimizer
from esper.simic.agent.ppo import PPOAgent
from esper.simic.control.action_spec import ActionSpec

CHECKPOINT_VERSION = 1
_FORMAT = "esper-agent"
_NOT_PLAIN = frozenset({"slot_config", "action_spec", "network", "device", "telemetry_config", "state_dim"})
"""Fields of the agent that are stored apart from `config`, or not at all."""


def agent_state(agent: PPOAgent) -> dict[str, Any]:
    """Everything that makes the agent what it is, in tensors and built-in types."""
    network = agent._base_network
    options = [spec.name for spec in fields(agent) if spec.init and spec.name not in _NOT_PLAIN]
    config = {name: getattr(agent, name) for name in options}
    return {
        "format": _FORMAT,
        "version": CHECKPOINT_VERSION,
        "state_dim": agent.state_dim,
        "slot_config": agent.slot_config.to_dict(),
        "action_spec": agent.spec.to_dict(),
        "config": {name: dict(value) if isinstance(value, Mapping) else value for name, value in config.items()},
        "network_options": dict(network.options),
        "network_state_dict": network.state_dict(),
        "optimizer_state_dict": agent.optimizer.state_dict(),
        "return_scale": agent.return_scale.state_dict(),
        "value_memory": agent.memory.state_dict(),
        "counters": {"total_steps": agent.total_steps, "updates": agent.updates},
    }


def pack_checkpoint(agent: PPOAgent, extra: Mapping[str, Any] | None = None) -> bytes:
    """The agent as it is now, as the bytes of a sealed file.

    `extra` holds what belongs to the run but not to the agent, in tensors and built-in types: the state of
    normalisers, random generators, environments.
    """
    return pack_state({**agent_state(agent), "extra": dict(extra or {})})


def save_checkpoint(path: Path, agent: PPOAgent, extra: Mapping[str, Any] | None = None) -> None:
    """Pack the agent and write it to `path`, all or nothing."""
    write_atomically(path, pack_checkpoint(agent, extra))


def load_checkpoint(path: Path, device: str = "auto") -> tuple[PPOAgent, dict[str, Any]]:
    """The agent saved at `path`, and the `extra` saved with it."""
    state = _migrated(_read(path), path)
    extra = state.pop("extra")
    return _build_agent(state, device), extra


def _read(path: Path) -> dict[str, Any]:
    state = read_state(path, "checkpoint", "`esper train` writes them to the folder checkpoints/ of a run")
    if state.get("format") != _FORMAT:
        raise InputError(f"{path} is not a checkpoint of an Esper agent")
    return state


def _migrated(state: dict[str, Any], path: Path) -> dict[str, Any]:
    """`state` in the present format. Older versions would be brought up to date here; none exists yet."""
    version = state.get("version")
    if version != CHECKPOINT_VERSION:
        raise InputError(
            f"{path} has checkpoint version {version}; this Esper reads version {CHECKPOINT_VERSION}: "
            "update Esper, or save the checkpoint again with the Esper that wrote it"
        )
    return state


def _build_agent(state: dict[str, Any], device: str) -> PPOAgent:
    spec = ActionSpec.from_dict(state["action_spec"])
    config, weights = state["config"], state.pop("network_state_dict")
    network = FactoredRecurrentActorCritic(
        spec,
        state["state_dim"],
        lstm_hidden_dim=config["lstm_hidden_dim"],
        lstm_layers=config["lstm_layers"],
        **state["network_options"],
    )
    network.load_state_dict(weights)
    del weights  # held twice, a large network would need twice the memory while the agent is built
    agent = PPOAgent(
        state_dim=state["state_dim"],
        slot_config=SlotConfig.from_dict(state["slot_config"]),
        action_spec=spec,
        network=network,
        device=device,
        **config,
    )
    restore_optimizer(agent.optimizer, state["optimizer_state_dict"], torch.device(agent.device))
    agent.return_scale.load_state_dict(state["return_scale"])
    agent.memory.load_state_dict(state["value_memory"], agent.device)
    agent.total_steps, agent.updates = state["counters"]["total_steps"], state["counters"]["updates"]
    return agent
