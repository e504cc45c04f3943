"""The governor: notices when the training of a host fails and takes it back to its last good epoch."""

import math
from collections import deque
from dataclasses import dataclass

import torch

from esper.kasmina import GraftedModel, Snapshot, restore_snapshot, take_snapshot


@dataclass(frozen=True, slots=True)
class GovernorSettings:
    """What counts as a failure, and how many an episode survives."""

    explosion_factor: float = 3.0
    """A loss above this many times the recent median is an explosion ..."""
    guess_factor: float = 1.5
    """... if it is also above this many times the loss of guessing, so that a good host may have a bad epoch."""
    history: int = 5
    """How many good epochs the median is taken over."""
    max_panics: int = 3
    """The panic that ends the episode."""


class Governor:
    """Watches one host. Call `check` after every epoch; on a panic everything is as it was before that epoch."""

    def __init__(self, model: GraftedModel, guess_loss: float, settings: GovernorSettings | None = None) -> None:
        self._model = model
        self._guess_loss = guess_loss
        self._settings = settings or GovernorSettings()
        self._losses: deque[float] = deque(maxlen=self._settings.history)
        self._snapshot: Snapshot | None = take_snapshot(model)
        self.panics = 0

    @property
    def exhausted(self) -> bool:
        """Whether the host has panicked so often that its episode is over."""
        return self.panics >= self._settings.max_panics

    def check(self, train_loss: float, val_loss: float) -> str | None:
        """Judge an epoch: keep it as the last good one, or roll back and say why."""
        reason = self._failure(train_loss, val_loss)
        if reason is None:
            self._losses.append(val_loss)
            self._snapshot = None  # released first, so that two never exist at once
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
            self._snapshot = take_snapshot(self._model)
            return None
        self.panics += 1
        assert self._snapshot is not None
        restore_snapshot(self._model, self._snapshot)
        return reason

    def _failure(self, train_loss: float, val_loss: float) -> str | None:
        for name, loss in (("training", train_loss), ("validation", val_loss)):
            # Written so that anything that is not a proper number counts as a failure.
            if not math.isfinite(loss):
                return f"{name} loss is {loss}"
            limit = self._limit()
            if not loss <= limit:
                return f"{name} loss {loss:.3g} exceeds {limit:.3g}"
        return None

    def _limit(self) -> float:
        recent = sorted(self._losses)
        median = recent[len(recent) // 2] if recent else self._guess_loss
        settings = self._settings
        return max(settings.explosion_factor * median, settings.guess_factor * self._guess_loss)
