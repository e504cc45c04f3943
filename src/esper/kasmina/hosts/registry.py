"""The registry of hosts: a name, a config dataclass with defaults, a module built from it."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from torch import Tensor, nn

from esper.leyline import InputError, unknown_name


class Host(nn.Module):
    """A plain network: a chain of submodules, with places to grow behind some of them.

    Hosts keep no running statistics (GroupNorm and LayerNorm only), so that many of them can run as one.
    """

    parts: tuple[str, ...]
    """The names of the submodules in the order in which they run; a part that is a sequence is one of its children."""
    slot_sites: tuple[str, ...]
    """The submodules behind which the host can grow, in that order."""

    def forward(self, x: Tensor) -> Tensor:
        """The logits for a batch."""
        h = x
        for part in self.parts:
            h = self.get_submodule(part)(h)
        return h


class BlockHost(Host):
    """A host made of something that shapes its `input`, `blocks` that end in an activation, and a `head`.

    It can grow behind each block, in front of the block's activation (where a branch widens the block's own layer), and
    at its output.
    """

    input: nn.Module
    blocks: nn.ModuleList
    head: nn.Module

    def name_parts(self) -> None:
        """To be called when all submodules are there."""
        blocks = [(f"blocks.{index}", block) for index, block in enumerate(self.blocks)]
        self.parts = ("input", *(name for name, _ in blocks), "head")
        inner = [(f"{name}.{len(block) - 2}", name) for name, block in blocks if isinstance(block, nn.Sequential)]
        self.slot_sites = (*itertools.chain.from_iterable(inner), "head")

    def forward(self, x: Tensor) -> Tensor:
        """The logits for a batch; the same as the parent's, without looking up names at every call."""
        h = self.input(x)
        for block in self.blocks:
            h = block(h)
        logits: Tensor = self.head(h)
        return logits


HostT = TypeVar("HostT", bound=Callable[[Any], Host])


@dataclass(frozen=True, slots=True)
class _Entry:
    build: Callable[[Any], Host]
    config: Any


_REGISTRY: dict[str, _Entry] = {}


def host(name: str, config: Any, **presets: Any) -> Callable[[HostT], HostT]:
    """Register the decorated class, whose constructor takes a config, as the host `name`.

    `config` is the default; each preset `key=config` becomes the host `name-key`.
    """

    def register(host_class: HostT) -> HostT:
        _REGISTRY[name] = _Entry(host_class, config)
        for key, preset in presets.items():
            _REGISTRY[f"{name}-{key}"] = _Entry(host_class, preset)
        return host_class

    return register


def host_names() -> list[str]:
    """The names that `build_host` takes."""
    return sorted(_REGISTRY)


def build_host(name: str, **overrides: Any) -> Host:
    """The host called `name`, its config fields replaced by `overrides`."""
    if name not in _REGISTRY:
        raise unknown_name("host", name, host_names())
    entry = _REGISTRY[name]
    allowed = [spec.name for spec in fields(entry.config)]
    for key in overrides:
        if key not in allowed:
            raise unknown_name(f"setting of host {name!r}:", key, allowed)
    config = replace(entry.config, **overrides)
    for spec in fields(config):
        value = getattr(config, spec.name)
        sizes = value if isinstance(value, tuple) else (value,)
        if not sizes or any(not isinstance(size, int) or size < 1 for size in sizes):
            raise InputError(f"setting {spec.name!r} of host {name!r} must be positive whole numbers; got {value!r}")
    return entry.build(config)
