"""A run folder: config, events, checkpoints and summary of one run, written so that a kill loses little."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from esper.leyline import DamagedFileError, EsperError, InputError, read_json, remove_partial_files, write_atomically
from esper.simic.config import TrainingConfig
from esper.simic.training.run_lock import locked

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
