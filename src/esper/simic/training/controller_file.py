"""A controller for any host in one file to hand on.

Weights and statistics are safetensors, all else is JSON in their header: a checksum over both, and the names of what is
observed, without which weights mean nothing. Loading runs no code from the file. Kinds are known by what they do, so
other blueprints need no other file.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from esper.leyline import DamagedFileError, InputError, SlotConfig
from esper.nissa.state_files import checked_keys, shown
from esper.simic.agent.checkpoint import naming
from esper.simic.agent.checkpoint_checks import build_network, check_network
from esper.simic.agent.network import Policy
from esper.simic.control import esper_action_spec
from esper.simic.control.anatomy import BLOCKS
from esper.simic.control.observing import state_dim
from esper.simic.training.controller import LearnedController

CONTROLLER_SUFFIX = ".safetensors"
CONTROLLER_VERSION = 1
_FORMAT = "esper-controller"
_HEADER = ("format", "version", "checksum", "settings")
_SETTINGS = ("sizes", "network_options", "observed", "trained_on", "about")
_SIZES = ("lstm_hidden_dim", "lstm_layers")
_ARCHITECTURE: Final = "pointing"
_SLOTS = SlotConfig.of_size(2)
"""Of the network as it is built; it then decides for any number."""
_NETWORK, _NORMALIZER = "network.", "normalizer."
_AGAIN = "take the controller that comes with this Esper, train one with `esper train`, or use the heuristic"


def pack_controller(policy: Policy, trained_on: Iterable[str], about: Mapping[str, str]) -> bytes:
    """What decides of a policy, as the bytes of a file.

    `trained_on` is what its hosts passed on (`SiteShape.carries`); `about` tells people where it comes from.
    """
    network, normalizer = policy.network, policy.normalizer
    if network.ARCHITECTURE != _ARCHITECTURE or normalizer is None:
        raise InputError(
            "only a controller for any host can be packed; train one with `esper train --learner.architecture pointing`"
        )
    tensors = {f"{_NETWORK}{name}": tensor.contiguous() for name, tensor in network.state_dict().items()}
    tensors |= {f"{_NORMALIZER}{name}": tensor.contiguous() for name, tensor in normalizer.state_dict().items()}
    settings = {
        "sizes": {name: getattr(network, name) for name in _SIZES},
        "network_options": network.options,
        "observed": _observed(),
        "trained_on": sorted(set(trained_on)),
        "about": dict(about),
    }
    told = json.dumps(settings)
    header = {"format": _FORMAT, "version": str(CONTROLLER_VERSION), "checksum": _checksum(tensors, told)}
    return save(tensors, {**header, "settings": told})


def read_controller(path: Path, device: str = "cpu") -> LearnedController:
    """The controller in the file at `path`; one that is cut, foreign or of another version is an error that says so."""
    settings, tensors = _read(path)
    if settings["observed"] != _observed():
        raise InputError(f"the controller {path} was made for an Esper that observes other things; {_AGAIN}")
    spec = esper_action_spec(_SLOTS)
    with naming(path, _AGAIN, "controller"):
        sizes = checked_keys(settings["sizes"], _SIZES, "sizes")
        state = {
            "config": {"architecture": _ARCHITECTURE, **sizes},
            "network_options": settings["network_options"],
            "state_dim": state_dim(_ARCHITECTURE, _SLOTS.num_slots),
            "network_state_dict": _part(tensors, _NETWORK),
        }
        check_network(state, spec)
        policy = Policy(build_network(state, spec), device, normalize=True)
        policy.network.load_state_dict(state["network_state_dict"])
        assert policy.normalizer is not None
        policy.normalizer.load_state_dict(_part(tensors, _NORMALIZER))
    return LearnedController(policy, tuple(map(str, settings["trained_on"])))


def about_controller(path: Path) -> dict[str, str]:
    """What a controller file tells people."""
    about: dict[str, str] = _read(path)[0]["about"]
    return about


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings and tensors of a file whose checksum is right."""
    try:
        data = path.read_bytes()
        tensors = load(data)
        # The length of the header, in the first eight bytes, is right, or nothing would have been loaded.
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
    except OSError as error:
        raise InputError(f"the controller {path} cannot be read ({error.strerror}); {_AGAIN}") from None
    except (SafetensorError, ValueError):
        raise DamagedFileError(f"{path} is cut short or is no controller; {_AGAIN}") from None
    if header.get("format") != _FORMAT:
        raise InputError(f"{path} is not a controller of Esper; {_AGAIN}")
    if header.get("version") != str(CONTROLLER_VERSION):
        raise InputError(
            f"{path} has controller version {shown(header.get('version'))}; "
            f"this Esper reads version {CONTROLLER_VERSION}; {_AGAIN}"
        )
    with naming(path, _AGAIN, "controller"):
        checked_keys(header, _HEADER, "the header")
        if header["checksum"] != _checksum(tensors, header["settings"]):
            raise InputError("its contents do not match its checksum")
        try:
            settings = json.loads(header["settings"])
        except ValueError:
            raise InputError("its settings are not JSON") from None
        return checked_keys(settings, _SETTINGS, "settings"), tensors


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _observed() -> dict[str, list[str]]:
    return {block.name: [column.name for column in block.columns] for block in BLOCKS}


def _checksum(tensors: Mapping[str, Tensor], settings: str) -> str:
    digest = hashlib.sha256(settings.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
