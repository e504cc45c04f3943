"""What `esper bench speed` times: hosts on random data, every second slot planted, grafted and as plain modules."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from esper.kasmina import Catalogue, Site, SlotTable, find_blueprint, graft, plant_fossils
from esper.kasmina.taps import fit_positions
from esper.tasks import OptimizerSettings, Split, Splits, Task
from esper.tolaria.executors.forward import cut_chain

_INPUT_SHAPES = {"mlp": (40,), "conv1d": (40,), "conv2d": (3, 32, 32)}
_CLASSES = 10
_OPTIMIZER = OptimizerSettings(lr=1e-3)
_SPLITS = (1024, 256, 256)
LSTM_SIZES = (128, 512)


@dataclass(frozen=True, slots=True)
class SpeedSettings:
    """Sizes and times of `esper bench speed`."""

    repeats: int
    """Interleaved repeats; medians are reported."""
    batch_size: int
    """Samples in a minibatch of a host."""
    hosts: tuple[str, ...] = ("mlp", "conv1d", "conv2d")
    """Hosts of the zoo, with their default settings."""
    nums: tuple[int, ...] = (1, 8, 32, 128)
    """How many hosts train side by side."""
    lstm_sizes: tuple[int, ...] = LSTM_SIZES
    """Of the learners whose updates are timed."""
    turn_seconds: float = 0.25
    """How long one turn of one contender should take at least, as far as one minibatch is shorter."""
    turn_batches: int = 10
    """How many minibatches one turn has at least, as in an epoch, whose beginning costs something too."""
    case_seconds: float = 15.0
    """The most that all turns of one host at one N may take; what would take longer is repeated less or skipped."""
    episode_length: int = 12
    """Steps of the episode in which the parts of a whole step are timed."""
    step_envs: int = 32
    """Hosts of that episode."""
    worker_envs: tuple[int, ...] = (32, 128)
    """How many hosts two workers share."""
    slots: tuple[int, ...] = (3, 5, 7, 9)
    """Slots of a host for which time and memory are measured; odd numbers, see `task_with_slots`."""
    lengths: tuple[int, ...] = (5, 10, 20)
    """Steps of an episode for which they are measured."""
    scaling_steps: int = 5
    """Steps of an episode where they are measured against N and slots."""
    batches_per_epoch: int = 25
    """Minibatches in a step of the environment."""


def quick_settings(batch_size: int) -> SpeedSettings:
    """Seconds instead of minutes: whether everything runs, not how fast."""
    return SpeedSettings(
        repeats=1,
        batch_size=batch_size,
        nums=(2,),
        lstm_sizes=(16,),
        turn_seconds=0.01,
        turn_batches=1,
        case_seconds=1.0,
        episode_length=4,
        step_envs=4,
        worker_envs=(4,),
        slots=(),
        lengths=(),
        scaling_steps=2,
        batches_per_epoch=2,
    )


def random_splits(shape: tuple[int, ...], sizes: tuple[int, int, int]) -> Splits:
    """Noise with random labels, always the same: only shapes matter for timing."""
    generator = torch.Generator().manual_seed(0)

    def split(num: int) -> Split:
        x = torch.randn(num, *shape, generator=generator)
        return Split(x, torch.randint(_CLASSES, (num,), generator=generator))

    return Splits(*(split(num) for num in sizes))


@cache
def _load(host: str) -> Splits:
    return random_splits(_INPUT_SHAPES[host], _SPLITS)


def host_task(host: str, batch_size: int, batches_per_epoch: int) -> Task:
    """A task on random data for a host of the zoo with its default settings."""
    return Task(
        f"speed-{host}",
        "random data",
        _LOADERS[host],
        host,
        _CLASSES,
        optimizer=_OPTIMIZER,
        batch_size=batch_size,
        batches_per_epoch=batches_per_epoch,
    )


# One function object per host, because a task's data is kept by the function that loads it.
_LOADERS = {host: (lambda host=host: _load(host)) for host in _INPUT_SHAPES}


def half_planted(num_hosts: int, catalogue: Catalogue) -> SlotTable:
    """A table with every second slot blended at alpha 1, going round the blueprints that fit it."""
    num_slots = len(catalogue.fits)
    turns = [itertools.cycle(fitting.nonzero().flatten().tolist()) for fitting in catalogue.fits]
    rows = []
    for host in range(num_hosts):
        planted = {slot: next(turns[slot]) + 1 for slot in range(num_slots) if (host + slot) % 2 == 0}
        rows.append(plant_fossils(SlotTable.empty(1, num_slots), planted, catalogue).columns())
    return SlotTable(**{name: torch.cat([row[name] for row in rows]) for name in rows[0]})


class BareNetwork(nn.Module):
    """A host and its seeds as anyone would write them by hand: `h = part(h); h = h + seed(h)`, or `+ seed(earlier)`."""

    def __init__(self, parts: list[nn.Module], seeds: Mapping[int, nn.Module], reads: Mapping[int, int | None]) -> None:
        """`seeds`: by the number of the part in front; `reads`: in front of which part, if they read elsewhere."""
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.seeds = nn.ModuleList(seeds.values())
        self.steps = [(part, seeds.get(number), reads.get(number)) for number, part in enumerate(parts)]

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        h = x
        earlier = []
        for part, seed, read in self.steps:
            earlier.append(h)
            h = part(h)
            if seed is not None:
                h = h + (seed(h) if read is None else fit_positions(seed(earlier[read]), h))
        return h


class BareTrainer:
    """One network, trained as plainly as its task allows: AdamW, host and each seed clipped apart."""

    def __init__(self, task: Task, sites: tuple[Site, ...], blueprints: list[int]) -> None:
        host = task.build_host()
        chain = cut_chain(host, sites)
        kinds = {slot: find_blueprint(sites[slot].shape.family, id_) for slot, id_ in enumerate(blueprints) if id_}
        planted = {part: slot for part, slot in chain.slots.items() if slot in kinds}
        seeds = {part: kinds[slot].build(sites[slot].shape) for part, slot in planted.items()}
        sources = {part: sites[slot].source_of(kinds[slot].reads) for part, slot in planted.items()}
        reads = {part: None if source is None else chain.sources[source] for part, source in sources.items()}
        self.network = BareNetwork([host.get_submodule(part) for part in chain.parts], seeds, reads)
        how = task.optimizer
        self._optimizer = AdamW(self.network.parameters(), how.lr, weight_decay=how.weight_decay, fused=True)
        self.clipped = [list(host.parameters()), *(list(seed.parameters()) for seed in seeds.values())]
        self._clip_norm = how.clip_norm
        self._train = task.splits().train
        self._batches = self._shuffled(task.batch_size)

    def _shuffled(self, batch_size: int) -> Iterator[Tensor]:
        while True:
            yield from torch.randperm(len(self._train)).split(batch_size)

    def train(self, batches: int) -> None:
        """Some minibatches."""
        for rows in itertools.islice(self._batches, batches):
            x, y = self._train.x[rows], self._train.y[rows]
            self._optimizer.zero_grad()
            F.cross_entropy(self.network(x), y).backward()
            for parameters in self.clipped:
                clip_grad_norm_(parameters, self._clip_norm)
            self._optimizer.step()


def sites_of(task: Task) -> tuple[tuple[Site, ...], Catalogue]:
    """The slots of a task's host and what fits them."""
    host = task.build_host()
    model = graft(host, at=host.slot_sites, example=task.splits().val.x[:2])
    return model.sites, model.catalogue
