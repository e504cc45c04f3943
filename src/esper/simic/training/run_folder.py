"""A run folder: config, events, checkpoints and summary of one run, written so that a kill loses little."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from esper.leyline import DamagedFileError, EsperError, InputError, read_json, write_atomically
from esper.simic.training.config import TrainingConfig

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

    def create(self, config: TrainingConfig) -> None:
        """Begin a new run here; a folder that holds one already is refused."""
        if self.config.exists():
            raise InputError(f"{self.path} holds a run already; go on with --resume, or name another folder with --out")
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            config.save(self.config)
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}; name a folder that can be written with --out") from None

    def stored_config(self) -> TrainingConfig:
        """The config of the run in this folder."""
        if not self.config.exists():
            raise InputError(f"{self.path} holds no run to resume; leave out --resume to begin one")
        return TrainingConfig.load(self.config)

    def newest(self) -> Path | None:
        """The newest checkpoint."""
        found = self._numbered()
        return found[max(found)] if found else None

    def save(self, round_index: int, packed: bytes, keep: int) -> None:
        """Add a checkpoint, then remove all but the newest `keep`; a failed write destroys nothing."""
        self._write(self.checkpoints / f"{_PREFIX}{round_index:06d}{_SUFFIX}", packed)
        found = self._numbered()
        for old in sorted(found)[:-keep]:
            found[old].unlink(missing_ok=True)

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

    def _write(self, path: Path, packed: bytes) -> None:
        try:
            write_atomically(path, packed)
        except OSError as error:
            raise EsperError(f"checkpoint {path} cannot be written ({error}); earlier ones are untouched") from None

    def _numbered(self) -> dict[int, Path]:
        names = self.checkpoints.glob(f"{_PREFIX}*{_SUFFIX}")
        return {int(path.stem.removeprefix(_PREFIX)): path for path in names if path.stem[len(_PREFIX) :].isdecimal()}
