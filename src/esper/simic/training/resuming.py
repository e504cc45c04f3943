"""Going on with a run: what of its config may change, and the newest checkpoint that can be read."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from esper.leyline import DamagedFileError, InputError, OtherCatalogueError, SlotConfig
from esper.nissa.state_files import shown
from esper.simic.agent.checkpoint import build_agent, naming, read_checkpoint
from esper.simic.agent.ppo import PPOAgent
from esper.simic.config import TrainingConfig
from esper.simic.control import esper_action_spec
from esper.simic.control.observing import state_dim
from esper.simic.training.run_folder import RunFolder, RunState
from esper.simic.training.setup import round_sizes

_LOG = logging.getLogger(__name__)
CHANGEABLE = ("rounds", "world.workers", "world.host_devices", "learner.device", "telemetry")
"""Fields that a resumed run may have otherwise: how long it goes on, where it computes, and what it records."""
_NO_OTHER = "copy a whole one there, or begin another run in another folder with --out"


def resumed_config(stored: TrainingConfig, given: TrainingConfig) -> TrainingConfig:
    """The config that a run goes on with: as `given`, if that changes nothing but what may change."""
    if given.world.executor == "auto":
        given = replace(given, world=replace(given.world, executor=stored.world.executor))
    # Compare field by field, by full names.
    before, after = _flat(stored.to_dict()), _flat(given.to_dict())
    names = [name for name in after | before if before.get(name) != after.get(name)]
    fixed = [name for name in names if not name.startswith(CHANGEABLE)]
    if fixed:
        differences = ", ".join(f"{name} (stored {before.get(name)!r}, given {after.get(name)!r})" for name in fixed)
        raise InputError(
            f"a resumed run may change {', '.join(CHANGEABLE)} and nothing else; these differ: {differences}: "
            "leave them out, or begin another run in another folder with --out"
        )
    if given.rounds < stored.rounds:
        raise InputError(
            f"rounds is {stored.rounds} in the stored run and can only become more; got {given.rounds}: leave it out"
        )
    return given


def load_newest(folder: RunFolder, config: TrainingConfig, num_slots: int) -> tuple[PPOAgent, RunState] | None:
    """Agent and state of the newest checkpoint that can be read; None if the run was killed before its first one.

    A checkpoint that cannot be read is warned of, and the one before it is tried.
    """
    paths = folder.newest_first()
    if not paths and folder.begun:
        raise InputError(
            f"{folder.path} holds no checkpoint, although its run had begun; put its folder checkpoints/ back, "
            "or begin another run in another folder with --out"
        )
    for path in paths[:-1]:
        try:
            return _load(path, config, num_slots, "the one before it is taken instead")
        except OtherCatalogueError:
            raise  # those before it were made with the same one
        except InputError as error:
            _LOG.warning("%s", error)
    if not paths:
        return None
    try:
        return _load(paths[-1], config, num_slots, _NO_OTHER)
    except DamagedFileError as error:
        others = "" if len(paths) == 1 else f"none of the {len(paths)} checkpoints can be used; the last: "
        raise DamagedFileError(f"{others}{error}") from None


def _load(path: Path, config: TrainingConfig, num_slots: int, remedy: str) -> tuple[PPOAgent, RunState]:
    """Everything is checked against the config before anything is built."""
    state = read_checkpoint(path, remedy)
    with naming(path, remedy):
        _check_agent(state, config, num_slots)
        run = RunState.of(state.pop("extra"), config)
    state["round"] = round_sizes(config)
    return build_agent(state, config.learner.device), run


def _check_agent(state: Mapping[str, Any], config: TrainingConfig, num_slots: int) -> None:
    """Whether the agent in a checkpoint is the one that the config makes; device and rounds may differ."""
    slots, learner, sizes = SlotConfig.of_size(num_slots), config.learner.to_dict(), round_sizes(config)
    wanted = {f"config.{name}": (state["config"][name], learner[name]) for name in learner if name != "device"}
    wanted |= {f"round.{name}": (state["round"][name], sizes[name]) for name in ("num_envs", "max_steps")}
    wanted["state_dim"] = (state["state_dim"], state_dim(config.learner.architecture, num_slots))
    wanted["slot_config"] = (state["slot_config"], slots.to_dict())
    wanted["action_spec"] = (state["action_spec"], esper_action_spec(slots).to_dict())
    for place, (stored, expected) in wanted.items():
        if stored != expected:
            raise InputError(f"{place} is {shown(stored)}, but the config of the run asks for {shown(expected)}")
    if state["normalizer"] is None:
        raise InputError("normalizer is missing")


def _flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Fields by name; those of a group, as the reward, by a name with a dot."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat
