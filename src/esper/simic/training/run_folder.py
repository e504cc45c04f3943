"""The folder of a run: held by one process, with its config, checkpoints and what a resumed run goes on with."""

import errno
import json
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self, get_type_hints

import torch
from torch import Tensor

from esper.leyline import (
    DamagedFileError,
    EsperError,
    InputError,
    Op,
    read_json,
    remove_partial_files,
    write_atomically,
)
from esper.leyline.checks import has_type
from esper.nissa.events import RoundCompleted
from esper.nissa.state_files import (
    LARGEST_NUMBER,
    checked_keys,
    checked_list,
    checked_number,
    checked_tensor,
    checked_whole,
    shown,
)
from esper.simic.config import TrainingConfig

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_LOG = logging.getLogger(__name__)
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_LOCKED_BYTE = 1 << 30
"""Where msvcrt locks a byte: behind the holder's number, which others must be able to read."""
_LONGEST_PID = 20


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path` meanwhile; if another process does, refuse in a sentence that names it.

    The file stays, because removing it while others wait for it would let two of them in. What counts is the lock, not
    the file: one that a dead process left is no obstacle.
    """
    handle = _open(path)
    try:
        if not _take(handle, path):
            raise InputError(
                f"{path.parent} is in use by {_holder(handle)}; wait until that has ended, or end it with the signal "
                "TERM, which saves first, or name another folder with --out"
            )
        with suppress(OSError):  # the number is there for messages only
            os.ftruncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
        try:
            yield
        finally:
            with suppress(OSError):
                os.ftruncate(handle, 0)
    finally:
        os.close(handle)  # ends the lock too


def _open(path: Path) -> int:
    try:
        # A link that somebody planted under this name is not followed.
        return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        raise InputError(
            f"{path.parent} cannot be written ({error.strerror}); make it writable, or name another folder with --out"
        ) from None


def _take(handle: int, path: Path) -> bool:
    """Lock without waiting; False if another process holds the lock."""
    if sys.platform == "win32":
        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(handle, 0, os.SEEK_SET)
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        _LOG.warning("%s is on a file system without locks: see to it that no other process trains there", path.parent)
    return True


def _holder(handle: int) -> str:
    text = b""
    with suppress(OSError):
        text = os.read(handle, _LONGEST_PID)
    return f"process {text.decode()}" if text.isdigit() else "another process"


BASELINES = ("never", "heuristic")
"""Controllers that are measured on the validation seeds before a run begins."""
ROUND_FIELDS = {
    spec.name: get_type_hints(RoundCompleted)[spec.name] for spec in fields(RoundCompleted) if spec.name != "seconds"
}
"""What the history keeps of a round, by its type: all but its seconds, because no two runs agree on them."""


@dataclass(slots=True)
class RunState:
    """How far a run has come, as tensors and built-in types."""

    round: int = 0
    """Rounds that are over."""
    phase: int = 0
    """Phases of the curriculum that are over; a run never goes back to one, even if it is given more rounds."""
    rng: Tensor = field(default_factory=torch.get_rng_state)
    """State of torch's generator when this was packed."""
    best: float = -math.inf
    """Mean objective of the best validation so far; minus infinity before the first one."""
    lessons: int = 0
    """Rounds with a teacher that are over."""
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    """Per baseline and task: objective on the validation seeds; empty before they are measured."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One entry per round."""
    instruments: dict[str, Any] = field(default_factory=dict)
    """Their state when this was packed."""

    def packed(self, instruments: dict[str, Any]) -> dict[str, Any]:
        """For a checkpoint, as of now."""
        self.rng, self.instruments = torch.get_rng_state(), instruments
        return {spec.name: getattr(self, spec.name) for spec in fields(self)}

    @classmethod
    def of(cls, extra: object, config: TrainingConfig) -> Self:
        """The inverse of `packed`; what a run with this config cannot have left is refused, and its place named."""
        state = checked_keys(extra, [spec.name for spec in fields(cls)], "extra")
        checked_whole(state["round"], "extra.round", 0, config.rounds)
        checked_whole(state["phase"], "extra.phase", 0, len(config.world.curriculum))
        checked_whole(state["lessons"], "extra.lessons", 0, config.lessons.rounds)
        if not isinstance(state["best"], float) or not state["best"] < math.inf:
            raise InputError(f"extra.best must be a number; got {shown(state['best'])}")
        # The parts that have a shape of their own.
        _check_generator(state["rng"])
        _check_baselines(state["baselines"], config)
        _check_history(state["history"], state["round"], config)
        _check_instruments(state["instruments"])
        return cls(**state)


def _check_generator(state: object) -> None:
    tensor = checked_tensor(state, "extra.rng", torch.get_rng_state().shape, torch.uint8)
    try:
        torch.Generator().set_state(tensor)
    except RuntimeError:
        raise InputError("extra.rng is no state of torch's generator") from None


def _check_baselines(baselines: object, config: TrainingConfig) -> None:
    if isinstance(baselines, dict) and not baselines:
        return  # they were not measured yet
    for name, by_task in checked_keys(baselines, BASELINES, "extra.baselines").items():
        for task, score in checked_keys(by_task, config.world.tasks, f"extra.baselines.{name}").items():
            checked_number(score, f"extra.baselines.{name}.{task}")


def _check_history(history: object, rounds: int, config: TrainingConfig) -> None:
    tasks = {config.world.in_phase(phase).tasks for phase in range(len(config.world.curriculum) + 1)}
    for index, entry in enumerate(checked_list(history, "extra.history", rounds)):
        place = f"extra.history.{index}"
        # Every field of the record is there, in its type; then what ties it to this run.
        for name, value in checked_keys(entry, tuple(ROUND_FIELDS), place).items():
            if not has_type(value, ROUND_FIELDS[name]):
                raise InputError(f"{place}.{name} cannot be {shown(value)}")
            for number in value.values() if isinstance(value, Mapping) else (value,):
                if isinstance(number, int):
                    checked_whole(number, f"{place}.{name}", -LARGEST_NUMBER)
        checked_whole(entry["round"], f"{place}.round", index + 1, index + 1)
        checked_whole(entry["dropped"], f"{place}.dropped")
        for name in ("objective", "gain", "validation"):
            if entry[name] is not None and tuple(entry[name]) not in tasks:
                raise InputError(f"{place}.{name} must hold one number for each task of the run")
        checked_keys(entry["ops"], [op.name for op in Op], f"{place}.ops")


def _check_instruments(instruments: object) -> None:
    state = checked_keys(instruments, ("gradients", "escalation"), "extra.instruments")
    checked_whole(state["escalation"], "extra.instruments.escalation")
    place = "extra.instruments.gradients"
    gradients: Mapping[str, Any] = checked_keys(state["gradients"], ("norm", "health", "samples"), place)
    checked_whole(gradients["samples"], f"{place}.samples")
    for name in ("norm", "health"):
        if gradients[name] is not None:
            checked_number(gradients[name], f"{place}.{name}", 0)
    if (gradients["norm"] is None) != (gradients["health"] is None):
        raise InputError(f"{place} must hold both norm and health, or neither")


_PREFIX, _SUFFIX = "round-", ".pt"


class RunFolder:
    """Where a run leaves what it made. It can be copied to another machine and opened there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.events = path / "events.jsonl"
        self.summary = path / "summary.json"
        self.checkpoints = path / "checkpoints"
        self.best = self.checkpoints / "best.pt"
        self.search = path / "search"

    @property
    def begun(self) -> bool:
        """Whether a run here has got as far as its first checkpoint, or leaves other traces of having been there."""
        recorded = self.events.exists() and self.events.stat().st_size > 0
        return recorded or self.summary.exists() or bool(self._numbered())

    def require_free(self) -> None:
        """Refuse a folder that holds a run; one that was killed before it had anything to lose gives way."""
        if self.config.exists() and self.begun:
            raise InputError(f"{self.path} holds a run already; go on with --resume, or name another folder with --out")

    def create(self, config: TrainingConfig) -> None:
        """Begin a new run here; the folder must be held."""
        self.require_free()
        self._save_config(config)

    def update(self, config: TrainingConfig) -> None:
        """Let the run go on with another config; if it has more rounds, it is no longer over."""
        stored = self.stored_config()
        if config != stored:
            self._save_config(config)
        if config.rounds > stored.rounds:
            self.summary.unlink(missing_ok=True)

    def stored_config(self) -> TrainingConfig:
        """The config of the run in this folder."""
        if not self.config.exists():
            raise InputError(f"{self.path} holds no run to resume; leave out --resume to begin one")
        return TrainingConfig.load(self.config)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from training here meanwhile; the folder is made if it does not exist.

        What killed writers left half-written is removed: nobody else can be writing.
        """
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}; name a folder that can be written with --out") from None
        with locked(self.path / ".lock"):
            remove_partial_files(self.path)
            remove_partial_files(self.checkpoints)
            yield

    def newest(self) -> Path | None:
        """The newest checkpoint."""
        return next(iter(self.newest_first()), None)

    def newest_first(self) -> list[Path]:
        """All checkpoints but the best."""
        found = self._numbered()
        return [found[number] for number in sorted(found, reverse=True)]

    def save(self, round_index: int, packed: bytes, keep: int) -> None:
        """Add a checkpoint, then remove all but the newest `keep`; a failed write destroys nothing."""
        self._write(self.checkpoints / f"{_PREFIX}{round_index:06d}{_SUFFIX}", packed)
        found = self._numbered()
        # A run goes back only over checkpoints that it could not read, so later ones are of no use.
        of_use = sorted(number for number in found if number <= round_index)[-keep:]
        for number in found.keys() - set(of_use):
            found[number].unlink(missing_ok=True)

    def save_best(self, packed: bytes) -> None:
        """Keep this controller as the best so far."""
        self._write(self.best, packed)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """What the run came to."""
        write_atomically(self.summary, (json.dumps(summary, indent=2) + "\n").encode())

    def read_summary(self) -> dict[str, Any] | None:
        """What the run came to; None if it is not over or there is no run here."""
        if not self.summary.exists():
            return None
        try:
            summary = read_json(self.summary, "it")
        except InputError as error:
            raise DamagedFileError(f"{self.summary} is damaged ({error}); resume the run to write it again") from None
        if not isinstance(summary, dict):
            raise DamagedFileError(f"{self.summary} holds no summary of a run; resume the run to write it again")
        return summary

    def _save_config(self, config: TrainingConfig) -> None:
        try:
            config.save(self.config)
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}; name a folder that can be written with --out") from None

    def _write(self, path: Path, packed: bytes) -> None:
        try:
            write_atomically(path, packed)
        except OSError as error:
            raise EsperError(
                f"checkpoint {path} cannot be written ({error.strerror}); earlier ones are untouched"
            ) from None

    def _numbered(self) -> dict[int, Path]:
        names = self.checkpoints.glob(f"{_PREFIX}*{_SUFFIX}")
        return {int(path.stem.removeprefix(_PREFIX)): path for path in names if path.stem[len(_PREFIX) :].isdecimal()}
