"""Splits: how they are checked, held out, cut from text and standardised. Then tasks, and where they are registered."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.kasmina import Host, build_host
from esper.leyline import DEFAULT_EPISODE_LENGTH, InputError, unknown_name

_SPLIT_SEED = 0
_VAL_MOST = 1024
VAL_SHARE = 0.2
"""Of the training samples, for validation; at most 1,024."""


@dataclass(frozen=True, slots=True)
class Split:
    """Samples `x [M, ...]` and their labels `y [M]`; for text, tokens `[M, T]` and the token after each `[M, T]`."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, slots=True)
class Splits:
    """Hosts train on `train`; signals and decisions come from `val`; only evaluation reads `test`."""

    train: Split
    val: Split
    test: Split

    def parts(self) -> tuple[Split, ...]:
        return self.train, self.val, self.test


def check_split(what: str, x: Tensor, y: Tensor, classes: int) -> None:
    """Refuse samples `x [M, ...]` and labels `y [M, ...]` that nothing can be learnt from; `what` names them.

    A wrong value would count as an answer, silently.
    """
    if len(x) != len(y) or not x.numel():
        raise InputError(f"{what} holds {len(x):,} samples of shape {tuple(x.shape[1:])} and {len(y):,} labels")
    # The extremes first: they need no copy of what may be gigabytes.
    if x.is_floating_point() and not torch.stack(torch.aminmax(x)).isfinite().all():
        count = int((~x.flatten(1).isfinite().all(1)).sum())
        raise InputError(f"{what} holds {count:,} samples with NaN or infinity; correct or remove them")
    if y.is_floating_point() or not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise InputError(f"{what} holds labels other than the whole numbers 0 to {classes - 1}")


def hold_out(samples: Split) -> tuple[Split, Split]:
    """What is left to train on, and at least one sample, drawn with a fixed seed, for validation."""
    val_samples = min(_VAL_MOST, max(1, int(VAL_SHARE * len(samples))))
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    val, train = order[:val_samples], order[val_samples:]
    return Split(samples.x[train], samples.y[train]), Split(samples.x[val], samples.y[val])


def hold_out_end(samples: Split, val_samples: int) -> tuple[Split, Split]:
    """The samples but the last, and the last `val_samples`: pieces of one text are held out together."""
    cut = len(samples) - val_samples
    return Split(samples.x[:cut], samples.y[:cut]), Split(samples.x[cut:], samples.y[cut:])


def to_sequences(tokens: NDArray[np.generic], context: int, most: int | None = None) -> Split:
    """Tokens `[M, context]` and the token after each `[M, context]`, one stretch of text after the other."""
    count = (len(tokens) - 1) // context
    count = count if most is None else min(count, most)
    stream = torch.from_numpy(tokens[: count * context + 1].astype(np.int64))
    return Split(stream[:-1].view(count, context), stream[1:].view(count, context).clone())


def standardise(splits: Splits) -> Splits:
    """Mean 0 and deviation 1 per channel of `x [M, C, ...]`, by statistics of the training split alone.

    Values become float32; a channel that never varies is only centred.
    """
    x = splits.train.x
    axes = [axis for axis in range(x.ndim) if axis != 1]
    shape = [1, -1, *[1] * (x.ndim - 2)]
    if x.dtype == torch.uint8:
        mean, std = _byte_statistics(x)
    else:
        std, mean = torch.std_mean(x.double(), axes, correction=0)
    std = torch.where(std > 0, std, 1.0)
    mean, std = mean.float().view(shape), std.float().view(shape)
    return Splits(*(Split((part.x.float() - mean).div_(std), part.y) for part in splits.parts()))


def _byte_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation per channel of `x [M, C, ...]` in bytes, counted, which spares large copies."""
    counts = torch.stack([torch.bincount(x[:, channel].flatten(), minlength=256) for channel in range(x.shape[1])])
    share = counts.double() / counts.sum(1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64)
    mean = share @ values
    return mean, (share @ values.square() - mean.square()).clamp(min=0).sqrt()


Loader = Callable[[], Splits]
Quality = Literal["accuracy", "loss"]
"""What the score in [0, 1] is: the share of right answers, or, for text, 1 - loss / ln(classes)."""
RateSchedule = Literal["constant", "cosine", "wsd"]
_SHAPED_BY_DATA = ("inputs", "classes", "vocabulary", "context")
"""Sizes of hosts that follow from the data."""
_SEVERAL = ("channels", "widths")
"""Sizes of hosts that are one number per layer."""
_BATCHES = "batches"
"""Minibatches in an epoch, which can be given beside sizes."""
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
        key = self.load, self.classes
        if key not in _LOADED:
            splits = self.load()
            for name, part in zip(("train", "val", "test"), splits.parts(), strict=True):
                check_split(f"the {name} split of task {self.name!r}", part.x, part.y, self.classes)
            _LOADED[key] = splits
        return _LOADED[key]

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
_LOADED: dict[tuple[Loader, int], Splits] = {}
"""What was loaded, and found in order for that many classes."""


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
    """The task called `name`; one of a family, or with a host of other sizes, is made the first time."""
    base, resized, sizes = name.partition("@")
    if resized:
        made = _with_sizes(find_task(base), sizes)
        return _RESOLVED.setdefault(made.name, made)
    if name in _REGISTRY:
        return _REGISTRY[name]
    family, colon, settings = name.partition(":")
    if not colon or family not in _FAMILIES:
        raise unknown_name("task", name, [*task_names(), *(family.form for family in task_families())])
    made = _FAMILIES[family].make(settings)
    return _REGISTRY.get(made.name) or _RESOLVED.setdefault(made.name, made)


def _with_sizes(task: Task, text: str) -> Task:
    """`task` with a host of the sizes in `text`, as "channels=4-8,kernel=5", or with longer epochs, as "batches=100".

    The optimiser stays.
    """
    given = {}
    for entry in text.split(","):
        key, equals, value = (part.strip() for part in entry.partition("="))
        parts = value.split("-")
        if not equals or key in _SHAPED_BY_DATA or not all(part.isdecimal() for part in parts):
            raise InputError(
                f"task {task.name}@{text} is malformed at {entry.strip()!r}; "
                "write sizes of the host as in mnist1d@channels=4-8 or digits@widths=12-12"
            )
        given[key] = tuple(map(int, parts)) if key in _SEVERAL else int(value) if len(parts) == 1 else ()
    batches = given.get(_BATCHES, task.batches_per_epoch)
    if not isinstance(batches, int) or batches < 1:
        raise InputError(f"task {task.name}@{text}: batches must be a whole number of 1 or more, as in @batches=100")
    settings = {**task.host_settings, **{key: size for key, size in given.items() if key != _BATCHES}}
    # Built once without memory, to refuse what is no host; the same sizes again are the same task.
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        build_host(task.host, **settings)
    if (settings, batches) == (task.host_settings, task.batches_per_epoch):
        return task
    shown = ",".join(f"{key}={'-'.join(map(str, _as_tuple(given[key])))}" for key in sorted(given))
    return replace(
        task,
        name=f"{task.name}@{shown}",
        summary=f"{task.summary}; with {shown}",
        host_settings=settings,
        batches_per_epoch=batches,
    )


def _as_tuple(size: int | tuple[int, ...]) -> tuple[int, ...]:
    return size if isinstance(size, tuple) else (size,)


def set_splits(task: Task, splits: Splits) -> None:
    """Let `splits`, which another process has loaded and checked, be the data of `task` in this one."""
    _LOADED[task.load, task.classes] = splits
