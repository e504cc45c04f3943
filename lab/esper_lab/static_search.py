"""Random search over static architectures: what people do instead of growing.

The space is the widths of the host times the kinds that a controller could plant, all there from the first step.
"""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from esper.kasmina import blueprints_of
from esper.leyline import InputError
from esper.tamiyo import Never, run_episodes
from esper.tasks import HostSettings, Task
from esper.tolaria import EpisodeResult, EpisodeSettings
from esper_lab.growth import widenings
from esper_lab.workload import sites_of

_MOST_SEEDS = 3
"""As many as the plans of a search have."""
_SHARES = (0.1, 0.2, 0.4)
"""By how much of the host's size its widths may rise."""
_TRIES = 1_000


@dataclass(frozen=True, slots=True)
class StaticNetwork:
    """A network that is not grown: a host of some widths, and what is planted in it from the start."""

    host_settings: HostSettings
    fossils: tuple[tuple[str, str], ...]
    """Slot and kind."""


def draw_networks(task: Task, count: int, most: float = 1.0) -> list[StaticNetwork]:
    """So many different networks, always the same for a task; none adds more than `most` times the host's parameters.

    Half of them keep the widths of the host; the others have all layers widened, or one. Zero to three slots are
    planted, each with any kind that fits it.
    """
    dice = random.Random(zlib.crc32(task.name.encode()))
    size = _host_size(task)
    wider = [settings for share in _SHARES for settings in _widened(task, int(size * (1 + share)))]
    drawn: list[StaticNetwork] = []
    for _ in range(_TRIES):
        widths = dice.choice(wider) if wider and dice.random() < 0.5 else task.host_settings
        network, params = _draw(replace(task, host_settings=widths), dice)
        if params <= size * (1 + most) and network not in drawn:
            drawn.append(network)
        if len(drawn) == count:
            break
    return drawn


def _widened(task: Task, target: int) -> list[HostSettings]:
    try:
        return list(widenings(task, target).values())
    except InputError:  # a host without widths
        return []


def _draw(task: Task, dice: random.Random) -> tuple[StaticNetwork, int]:
    """A network with the task's host, and its parameters."""
    sites, catalogue = sites_of(task)
    slots = sorted(dice.sample(range(len(sites)), min(len(sites), dice.randint(0, _MOST_SEEDS))))
    fossils, params = [], _host_size(task)
    for slot in slots:
        fitting = [kind for kind in blueprints_of(sites[slot].shape.family) if catalogue.fits[slot, kind.id - 1]]
        if fitting:
            kind = dice.choice(fitting)
            fossils.append((sites[slot].slot_id, kind.name))
            params += int(catalogue.params[slot, kind.id - 1])
    return StaticNetwork(task.host_settings, tuple(fossils)), params


def _host_size(task: Task) -> int:
    return sum(parameter.numel() for parameter in task.build_host().parameters())


def train_networks(
    task: Task, networks: Sequence[StaticNetwork], seeds: Sequence[int], settings: EpisodeSettings
) -> list[list[EpisodeResult]]:
    """Per network, an episode of each seed; what it has more than the host pays rent like a seed."""
    (host,) = run_episodes(task, Never(), seeds[:1], replace(settings, length=1), test=False)
    trained = []
    for network in networks:
        wide = replace(task, host_settings=network.host_settings)
        results = run_episodes(wide, Never(), seeds, settings, fossils=dict(network.fossils))
        trained.append([relative_to(host, result) for result in results])
    return trained


def relative_to(host: EpisodeResult, result: EpisodeResult) -> EpisodeResult:
    """`result` of a wider network, as what was added to `host`."""
    return replace(
        result,
        host_params=host.host_params,
        added_params=result.host_params + result.added_params - host.host_params,
        host_flops=host.host_flops,
        added_flops=result.host_flops + result.added_flops - host.host_flops,
    )


def best_of(trained: Sequence[Sequence[EpisodeResult]], candidates: int) -> list[list[EpisodeResult]]:
    """Per seed, the choices of searches with so many candidates, one for each such group: the best on validation."""
    groups = [trained[first : first + candidates] for first in range(0, len(trained) - candidates + 1, candidates)]
    return [
        [max((results[seed] for results in group), key=lambda result: result.val_objective) for group in groups]
        for seed in range(len(trained[0]))
    ]
