"""The registry of tasks: data with three splits, a host tuned on it, and how long an epoch is."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from esper.kasmina import Host, build_host
from esper.leyline import DEFAULT_EPISODE_LENGTH, unknown_name
from esper.tasks.samples import Splits, check_split

Loader = Callable[[], Splits]
Quality = Literal["accuracy", "loss"]
"""What the score in [0, 1] is: the share of right answers, or, for text, 1 - loss / ln(classes)."""
RateSchedule = Literal["constant", "cosine", "wsd"]
HostSettings = Mapping[str, int | tuple[int, ...]]
"""Arguments of a host of the zoo."""


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """How hosts of a task are trained; found by tuning the host alone."""

    name: Literal["adamw", "sgd"] = "adamw"
    lr: float = 3e-2
    weight_decay: float = 0.01
    momentum: float = 0.9
    """Used by SGD only."""
    schedule: RateSchedule = "constant"
    """Cosine and wsd warm up over the first two epochs and end at 0: the one falls all the time, the other (warm-up,
    stable, decay) keeps the rate and falls linearly over the last 30 % of the episode."""
    seed_lr_scale: float = 1.0
    """Learning rate of seeds relative to the host's: deeper parts often want less."""
    clip_norm: float = 1.0
    """Gradients of the host, and of each seed apart, are scaled down to this norm."""


def _bundled() -> str:
    # Not a lambda: a task that is sent to another process takes this along by name.
    return "bundled"


@dataclass(frozen=True, slots=True)
class Task:
    """Everything that running a task needs."""

    name: str
    summary: str
    load: Loader
    host: str
    classes: int
    host_settings: HostSettings = field(default_factory=dict)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    batch_size: int = 64
    batches_per_epoch: int = 25
    episode_length: int = DEFAULT_EPISODE_LENGTH
    quality: Quality = "accuracy"
    data: Callable[[], str] = _bundled
    """Where the data comes from and whether it is here, in a few words."""
    needs_files: bool = False
    """Whether the data has to be downloaded or put in place first."""

    @property
    def guess_loss(self) -> float:
        """The loss of guessing every class alike."""
        return math.log(self.classes)

    def splits(self) -> Splits:
        """The data, loaded and checked once per process and shared by all hosts."""
        splits = _load_once(self.load)
        if (self.load, self.classes) not in _CHECKED:
            for name in ("train", "val", "test"):
                part = getattr(splits, name)
                check_split(f"the {name} split of task {self.name!r}", part.x, part.y, self.classes)
            _CHECKED.add((self.load, self.classes))
        return splits

    def build_host(self) -> Host:
        """A fresh host, initialised from torch's global random state."""
        return build_host(self.host, **self.host_settings)


@dataclass(frozen=True, slots=True)
class TaskFamily:
    """Tasks called `name:settings`, made when they are asked for."""

    form: str
    """How their names are written."""
    summary: str
    host: str
    make: Callable[[str], Task]
    data: Callable[[], str]


_REGISTRY: dict[str, Task] = {}
_FAMILIES: dict[str, TaskFamily] = {}
_RESOLVED: dict[str, Task] = {}
"""Tasks of families that were asked for, by canonical name, so that their data is loaded once."""
_CHECKED: set[tuple[Loader, int]] = set()
"""Loaders whose data was found in order for that many classes."""


def task(name: str, summary: str, **fields: Any) -> Callable[[Loader], Loader]:
    """Register the decorated function, which loads the splits, as the task `name`; `fields` are those of `Task`."""

    def register(load: Loader) -> Loader:
        _REGISTRY[name] = Task(name, summary, load, **fields)
        return load

    return register


def task_family(
    name: str, form: str, summary: str, *, host: str, data: Callable[[], str]
) -> Callable[[Callable[[str], Task]], Callable[[str], Task]]:
    """Register the decorated function, which makes a task from what follows `name:`, as a family of tasks."""

    def register(make: Callable[[str], Task]) -> Callable[[str], Task]:
        _FAMILIES[name] = TaskFamily(form, summary, host, make, data)
        return make

    return register


def task_names() -> list[str]:
    """The names that `find_task` takes, those of families apart."""
    return sorted(_REGISTRY)


def task_families() -> list[TaskFamily]:
    return [_FAMILIES[name] for name in sorted(_FAMILIES)]


def tasks_without_download() -> list[str]:
    """The tasks that work offline, for those whose data is missing."""
    return [name for name in task_names() if not _REGISTRY[name].needs_files]


def find_task(name: str) -> Task:
    """The task called `name`; one of a family is made the first time."""
    if name in _REGISTRY:
        return _REGISTRY[name]
    family, colon, settings = name.partition(":")
    if not colon or family not in _FAMILIES:
        raise unknown_name("task", name, [*task_names(), *(family.form for family in task_families())])
    made = _FAMILIES[family].make(settings)
    return _REGISTRY.get(made.name) or _RESOLVED.setdefault(made.name, made)


@cache
def _load_once(load: Loader) -> Splits:
    return load()
