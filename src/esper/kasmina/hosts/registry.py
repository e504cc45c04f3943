"""The registry of hosts: a name, a config dataclass with defaults, a module built from it."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from torch import Tensor, nn

from esper.leyline import InputError, unknown_name


class Host(nn.Module):
    """A plain network: a chain of submodules, with a place to grow behind each but the last.

    Hosts keep no running statistics (GroupNorm and LayerNorm only), so that many of them can run as one.
    """

    parts: tuple[str, ...]
    """The names of the submodules in the order in which they run."""

    @property
    def slot_sites(self) -> tuple[str, ...]:
        """The submodules behind which the host can grow."""
        return self.parts[:-1]

    def forward(self, x: Tensor) -> Tensor:
        """The logits for a batch."""
        h = x
        for part in self.parts:
            h = self.get_submodule(part)(h)
        return h


class BlockHost(Host):
    """A host made of `blocks` and a `head`."""

    blocks: nn.ModuleList
    head: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        """The logits for a batch; the same as the parent's, without looking up names at every call."""
        h = x
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
