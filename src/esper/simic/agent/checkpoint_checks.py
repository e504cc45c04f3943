"""Whether the state in a checkpoint is one that an agent can be built from: every key, type, shape and number.

Shapes are compared with those of a network that is made from the stored options on the meta device, which allocates
nothing. Sizes in the options are first held against the number of weights in the file, so that no option can ask for
more memory than the file has.
"""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from esper.leyline import HEAD_NAMES, InputError, SlotConfig
from esper.leyline.checks import has_type
from esper.nissa.state_files import (
    checked_keys,
    checked_list,
    checked_number,
    checked_tensor,
    checked_whole,
    shown,
)
from esper.simic.agent.network import RecurrentActorCritic
from esper.simic.agent.networks import network_class
from esper.simic.agent.optimization import build_optimizer
from esper.simic.agent.rollout_buffer import LARGEST_ROUND, SequenceBatch, TamiyoRolloutBuffer
from esper.simic.config import LearnerConfig
from esper.simic.control.action_masks import ActionSpec, esper_action_spec
from esper.simic.control.normalization import RunningMeanStd

STATE_KEYS = (
    "format", "version", "state_dim", "slot_config", "action_spec", "catalogue", "config", "round", "network_options",
    "network_state_dict", "normalizer", "return_scale", "optimizer_state_dict", "value_memory", "counters", "extra",
)  # fmt: skip
_NETWORK_OPTIONS = {
    "feature_dim": int,
    "feature_layers": int,
    "input_norm": bool,
    "head_dim": int | None,
    "policy_gain": float,
}
_KERNEL_FLAGS = ("foreach", "fused", "capturable")
"""Options of an optimiser that depend on the device; they are not taken from the file."""


def check_agent_state(state: Mapping[str, Any]) -> None:
    """Refuse a state that is not a whole agent, and name the place that is wrong."""
    checked_keys(state, STATE_KEYS, "the checkpoint")
    if not isinstance(state["extra"], dict):
        raise InputError(f"extra must be a dictionary; got {shown(state['extra'])}")
    spec, slots = ActionSpec.from_dict(state["action_spec"]), SlotConfig.from_dict(state["slot_config"])
    if spec.names == HEAD_NAMES and spec != esper_action_spec(slots):
        raise InputError(f"action_spec does not fit the {slots.num_slots} slots of slot_config")
    if bool(state["catalogue"]) != (spec.names == HEAD_NAMES):
        raise InputError("catalogue must list blueprints if one of the heads chooses among them, and only then")
    config = _checked_config(state, spec)
    network = check_network(state, spec)
    _check_round(state, spec, config)
    _check_optimizer(state["optimizer_state_dict"], network, config)
    if state["normalizer"] is not None:
        network.make_normalizer("cpu").check(state["normalizer"], "normalizer")
    RunningMeanStd().check(state["return_scale"], "return_scale")
    _check_value_memory(state["value_memory"], state, spec)
    for name, count in checked_keys(state["counters"], ("total_steps", "updates"), "counters").items():
        checked_whole(count, f"counters.{name}")


def check_network(state: Mapping[str, Any], spec: ActionSpec) -> RecurrentActorCritic:
    """Refuse a state that holds no whole network; returns one of its sizes, without memory for its weights."""
    _check_network_options(state["network_options"], network_class(state["config"]["architecture"]).OPTIONS)
    network = _reference_network(state, spec)
    expected = network.state_dict()
    for name, tensor in checked_keys(state["network_state_dict"], tuple(expected), "network_state_dict").items():
        checked_tensor(tensor, f"network_state_dict.{name}", expected[name].shape, expected[name].dtype)
    return network


def _checked_config(state: Mapping[str, Any], spec: ActionSpec) -> LearnerConfig:
    """The learner's config, which names heads that there are."""
    checked_keys(state["config"], [field.name for field in fields(LearnerConfig)], "config")
    config = LearnerConfig.from_dict(state["config"])
    for head in (*config.head_lr_scale, *config.entropy_coef_per_head):
        spec.head(head)
    return config


def _check_network_options(given: object, names: tuple[str, ...]) -> None:
    options = checked_keys(given, names, "network_options")
    for name, value in options.items():
        if not has_type(value, _NETWORK_OPTIONS[name]):
            raise InputError(f"network_options.{name} cannot be {shown(value)}")
    checked_number(options["policy_gain"], "network_options.policy_gain", 0)


def _reference_network(state: Mapping[str, Any], spec: ActionSpec) -> RecurrentActorCritic:
    """A network of the stored sizes without memory for its weights."""
    weights = state["network_state_dict"]
    if not isinstance(weights, Mapping) or not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        raise InputError("network_state_dict must hold tensors by name")
    config, options = state["config"], state["network_options"]
    stored = sum(tensor.numel() for tensor in weights.values())
    for place, size, most in (
        ("state_dim", state["state_dim"], stored),
        ("config.lstm_hidden_dim", config["lstm_hidden_dim"], stored),
        ("config.lstm_layers", config["lstm_layers"], len(weights)),
        ("network_options.feature_dim", options["feature_dim"], stored),
        ("network_options.head_dim", 1 if options["head_dim"] is None else options["head_dim"], stored),
        *((f"action_spec.{head.name}", head.size, stored) for head in spec.heads),
    ):
        checked_whole(size, place, 1, most)
    with torch.device("meta"):
        return build_network(state, spec)


def build_network(state: Mapping[str, Any], spec: ActionSpec) -> RecurrentActorCritic:
    """A network of the stored sizes, with fresh weights."""
    sizes = {name: state["config"][name] for name in ("lstm_hidden_dim", "lstm_layers")}
    kind = network_class(state["config"]["architecture"])
    return kind(spec, state["state_dim"], **sizes, **state["network_options"])


def _check_round(state: Mapping[str, Any], spec: ActionSpec, config: LearnerConfig) -> None:
    """Whether the buffer of a round would be made; on the meta device it takes no memory."""
    sizes = checked_keys(state["round"], ("num_envs", "max_steps", "decay_steps"), "round")
    for name in ("num_envs", "max_steps"):
        checked_whole(sizes[name], f"round.{name}", 1, LARGEST_ROUND)
    if sizes["decay_steps"] is not None:
        checked_whole(sizes["decay_steps"], "round.decay_steps")
    checked_whole(config.num_minibatches or 1, "config.num_minibatches", 1, sizes["num_envs"])
    TamiyoRolloutBuffer(
        state_dim=state["state_dim"],
        num_envs=sizes["num_envs"],
        max_steps=sizes["max_steps"],
        lstm_hidden_dim=config.lstm_hidden_dim,
        lstm_layers=config.lstm_layers,
        action_spec=spec,
        device="meta",
        hidden_storage=config.hidden_storage,
    )


def _check_optimizer(state: object, network: RecurrentActorCritic, config: LearnerConfig) -> None:
    """Groups as the options give them, and moments of the shapes of the parameters; none before the first step."""
    optimizer = build_optimizer(network, config.lr, config.weight_decay, config.head_lr_scale)
    expected = optimizer.state_dict()["param_groups"]
    parts = checked_keys(state, ("state", "param_groups"), "optimizer_state_dict")
    groups = checked_list(parts["param_groups"], "optimizer_state_dict.param_groups", len(expected))
    for index, (group, like) in enumerate(zip(groups, expected, strict=True)):
        _check_group(group, like, f"optimizer_state_dict.param_groups.{index}")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments, place = parts["state"], "optimizer_state_dict.state"
    if not isinstance(moments, Mapping):
        raise InputError(f"{place} must hold moments by the number of their parameter; got {shown(moments)}")
    if len(moments) not in (0, len(parameters)):
        wanted = f"all {len(parameters)} parameters or of none"
        raise InputError(f"{place} must hold moments of {wanted}; got {len(moments)}")
    for number, of_one in moments.items():
        where = f"{place}.{checked_whole(number, f'a key of {place}', 0, len(parameters) - 1)}"
        kept = checked_keys(of_one, ("step", "exp_avg", "exp_avg_sq"), where)
        parameter = parameters[number]
        if bool((checked_tensor(kept["step"], f"{where}.step", (), torch.float32) < 0).any()):
            raise InputError(f"{where}.step must be 0 or more")
        for name in ("exp_avg", "exp_avg_sq"):
            checked_tensor(kept[name], f"{where}.{name}", parameter.shape, parameter.dtype)
        if bool((kept["exp_avg_sq"] < 0).any()):
            raise InputError(f"{where}.exp_avg_sq must be 0 or more")


def _check_group(group: object, expected: Mapping[str, Any], place: str) -> None:
    for name, value in checked_keys(group, tuple(expected), place).items():
        like = expected[name]
        if name == "lr":
            checked_number(value, f"{place}.lr", 0)
        elif name in _KERNEL_FLAGS:
            if value is not None and not isinstance(value, bool):
                raise InputError(f"{place}.{name} must be true, false or none; got {shown(value)}")
        elif not _same(value, like):
            raise InputError(f"{place}.{name} must be {like}, as the options say; got {shown(value)}")


def _same(value: object, like: object) -> bool:
    """Equal, and of the same types; tensors, which do not compare to one truth value, are never expected here."""
    if isinstance(value, list | tuple) and isinstance(like, list | tuple):
        return len(value) == len(like) and all(map(_same, value, like))
    return type(value) is type(like) and value == like


def _check_value_memory(rounds: object, state: Mapping[str, Any], spec: ActionSpec) -> None:
    """Rounds that values are fitted to again; each has numbers of sequences and steps of its own."""
    config = state["config"]
    stored = checked_list(rounds, "value_memory")
    if len(stored) > config["value_memory"]:
        raise InputError(
            f"value_memory holds {len(stored)} rounds; config.value_memory allows {config['value_memory']}"
        )
    for index, batch in enumerate(stored):
        place = f"value_memory.{index}"
        parts = checked_keys(batch, [spec.name for spec in fields(SequenceBatch)], place)
        if not isinstance(parts["masks"], dict) or parts["masks"]:
            raise InputError(f"{place}.masks must be empty; got {shown(parts['masks'])}")
        valid = checked_tensor(parts["valid"], f"{place}.valid", None, torch.bool)
        if valid.dim() != 2 or not math.prod(valid.shape):
            raise InputError(f"{place}.valid must have sequences and steps; its shape is {list(valid.shape)}")
        _check_sequences(parts, (valid.shape[0], valid.shape[1]), state, spec, place)


def _check_sequences(
    parts: Mapping[str, Any], grid: tuple[int, int], state: Mapping[str, Any], spec: ActionSpec, place: str
) -> None:
    heads, count = len(spec.heads), grid[0]
    hidden = (state["config"]["lstm_layers"], count, state["config"]["lstm_hidden_dim"])
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "obs": ((*grid, state["state_dim"]), torch.float32),
        "actions": ((*grid, heads), torch.int64),
        "old_log_probs": ((*grid, heads), torch.float32),
        "advantages": (grid, torch.float32),
        "returns": (grid, torch.float32),
        "active": ((*grid, heads), torch.bool),
        "selected": ((*grid, heads, spec.width), torch.bool),
        "lengths": ((count,), torch.int64),
    }
    for name, (shape, dtype) in shapes.items():
        # One bad reward spoils the advantages of its whole round; refitting does not use them.
        checked_tensor(parts[name], f"{place}.{name}", shape, dtype, finite=name == "obs")
    if not isinstance(parts["hidden"], tuple) or len(parts["hidden"]) != 2:
        raise InputError(f"{place}.hidden must be a pair of tensors; got {shown(parts['hidden'])}")
    for part in parts["hidden"]:
        checked_tensor(part, f"{place}.hidden", hidden, torch.float32)
    lengths = parts["lengths"]
    if int(lengths.min()) < 1 or int(lengths.max()) > grid[1]:
        raise InputError(f"{place}.lengths must be from 1 to {grid[1]}")
