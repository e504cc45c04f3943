"""Saving and loading an agent: one plain dictionary with explicit keys, written atomically, loaded without pickle.

Versions of the format:
0: before slot configurations were stored; the architecture had to be inferred from the weights. No such file exists.
1: action heads, slot configuration, state_dim and all options are stored as plain data.
2: the catalogue of blueprints is stored too, because the ids that an agent has learned mean nothing without it.
3: `config` is a `LearnerConfig`, sizes stand apart, and the normaliser belongs to the agent.
4: all options of the network are in `config`.
5: `config` names the network, and a head may have logits that are given another head.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from esper.kasmina import catalogue_names, check_catalogue
from esper.leyline import HEAD_NAMES, DamagedFileError, InputError, SlotConfig, write_atomically
from esper.nissa.state_files import pack_state, read_state, shown
from esper.simic.agent.checkpoint_checks import build_network, check_agent_state
from esper.simic.agent.ppo import PPOAgent
from esper.simic.config import LearnerConfig
from esper.simic.control.action_masks import ActionSpec

CHECKPOINT_VERSION = 5
_FORMAT = "esper-agent"
_AGAIN = "train a controller with the present blueprints"
REMEDY = "take another one of the folder checkpoints/ of its run, to which `esper train` writes them"


def agent_state(agent: PPOAgent) -> dict[str, Any]:
    """Everything that makes the agent what it is, in tensors and built-in types."""
    policy = agent.policy
    return {
        "format": _FORMAT,
        "version": CHECKPOINT_VERSION,
        **agent.made_with,
        "catalogue": catalogue_names() if agent.spec.names == HEAD_NAMES else {},
        "network_state_dict": policy.network.state_dict(),
        "normalizer": None if policy.normalizer is None else policy.normalizer.state_dict(),
        "return_scale": policy.return_scale.state_dict(),
        "optimizer_state_dict": agent.optimizer.state_dict(),
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


def load_checkpoint(path: Path, device: str | None = "auto") -> tuple[PPOAgent, dict[str, Any]]:
    """The agent saved at `path`, and the `extra` saved with it, which is for the caller to check.

    A file that is damaged, or holds what no agent can be made of, is a `DamagedFileError` that names the place.
    """
    state = read_checkpoint(path)
    extra = state.pop("extra")
    return build_agent(state, device), extra


def read_checkpoint(path: Path, remedy: str = REMEDY) -> dict[str, Any]:
    """The state in the file at `path`, checked down to the shape of every tensor; nothing is built from it yet."""
    state = read_state(path, "checkpoint", remedy)
    if state.get("format") != _FORMAT:
        raise InputError(f"{path} is not a checkpoint of an Esper agent; {remedy}")
    _require_version(state, path)
    if state.get("catalogue") != {}:  # an agent for another world than growing networks knows no blueprints
        check_catalogue(state.get("catalogue"), catalogue_names(), f"the checkpoint {path}", _AGAIN)
    with naming(path, remedy):
        check_agent_state(state)
    return state


@contextmanager
def naming(path: Path, remedy: str = REMEDY, what: str = "checkpoint") -> Iterator[None]:
    """Errors about the contents of a file say which file it is and what to do."""
    try:
        yield
    except InputError as error:
        raise DamagedFileError(f"the {what} {path} cannot be used: {error}; {remedy}") from None


def _require_version(state: dict[str, Any], path: Path) -> None:
    """Refuse other formats: what an older one lacks, nobody can know any more."""
    version = state.get("version")
    if version == 1:
        check_catalogue(None, {}, f"the checkpoint {path}", _AGAIN)
    if version != CHECKPOINT_VERSION or isinstance(version, bool):
        raise InputError(
            f"{path} has checkpoint version {shown(version)}; this Esper reads version {CHECKPOINT_VERSION}: "
            "use the Esper that wrote it, or train again"
        )


def build_agent(state: dict[str, Any], device: str | None = None) -> PPOAgent:
    """The agent of a state that `read_checkpoint` has checked, on another device than its own if one is named."""
    spec = ActionSpec.from_dict(state["action_spec"])
    config, weights = LearnerConfig.from_dict(state["config"]), state.pop("network_state_dict")
    if device is not None:
        config = replace(config, device=device)
    network = build_network(state, spec)
    network.load_state_dict(weights)
    del weights  # held twice, a large network would need twice the memory while the agent is built
    agent = PPOAgent(
        config,
        state_dim=state["state_dim"],
        slot_config=SlotConfig.from_dict(state["slot_config"]),
        action_spec=spec,
        network=network,
        normalize=state["normalizer"] is not None,
        **state["round"],
    )
    # Everything else that learning goes on with.
    _load_optimizer(agent, state["optimizer_state_dict"])
    if agent.policy.normalizer is not None:
        agent.policy.normalizer.load_state_dict(state["normalizer"])
    agent.policy.return_scale.load_state_dict(state["return_scale"])
    agent.memory.load_state_dict(state["value_memory"], agent.device)
    agent.total_steps, agent.updates = state["counters"]["total_steps"], state["counters"]["updates"]
    return agent


def _load_optimizer(agent: PPOAgent, state: Mapping[str, Any]) -> None:
    """Moments and learning rates; which kernels run depends on the device, and so stays as the agent has it."""
    groups = agent.optimizer.state_dict()["param_groups"]
    for group, saved in zip(groups, state["param_groups"], strict=True):
        group["lr"] = saved["lr"]
    agent.optimizer.load_state_dict({"state": state["state"], "param_groups": groups})
