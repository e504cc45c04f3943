"""The governor: notices when the training of a host fails, so that it can be taken back to its last good epoch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


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
    """Judges the epochs of N hosts. It knows losses only; who rolls back is told by `judge`."""

    def __init__(self, num_hosts: int, guess_loss: float, settings: GovernorSettings | None = None) -> None:
        self._settings = settings or GovernorSettings()
        self._guess_loss = guess_loss
        self._losses = torch.full((num_hosts, self._settings.history), math.nan)
        self.panics = torch.zeros(num_hosts, dtype=torch.int64)
        """`[N]`: how often each host has failed in this episode."""

    @property
    def exhausted(self) -> Tensor:
        """`[N]` bool: the host has panicked so often that its episode is over."""
        return self.panics >= self._settings.max_panics

    def start(self, hosts: Tensor) -> None:
        """New episodes begin for `hosts [N]` (bool)."""
        self._losses[hosts] = math.nan
        self.panics[hosts] = 0

    def judge(self, train_loss: Tensor, val_loss: Tensor, running: Tensor) -> Tensor:
        """`[N]` bool: which of the `running` hosts failed, so that their epoch has to be undone.

        The losses of good epochs enter the history.
        """
        limit = self._limit()
        # Written so that anything that is not a proper number counts as a failure.
        good = torch.ones_like(limit, dtype=torch.bool)
        for loss in (train_loss, val_loss):
            good &= loss.isfinite() & (loss <= limit)
        moved = torch.cat([self._losses[:, 1:], val_loss[:, None]], 1)
        self._losses = torch.where((good & running)[:, None], moved, self._losses)
        panicked = running & ~good
        self.panics += panicked
        return panicked

    def explain(self, train_loss: float, val_loss: float, host: int) -> str:
        for name, loss in (("training", train_loss), ("validation", val_loss)):
            if not math.isfinite(loss):
                return f"{name} loss is {loss}"
        name, worst = max(("validation", val_loss), ("training", train_loss), key=lambda item: item[1])
        return f"{name} loss {worst:.3g} exceeds {float(self._limit()[host]):.3g}"

    def _limit(self) -> Tensor:
        known = self._losses.isfinite()
        middle = (known.sum(1) // 2).clamp(max=self._losses.shape[1] - 1)
        # Sorted with what is not known last, so that the middle of what is known can be picked.
        recent = self._losses.nan_to_num(nan=math.inf).sort(1).values.gather(1, middle[:, None])[:, 0]
        median = torch.where(known.any(1), recent, self._guess_loss)
        settings = self._settings
        return (settings.explosion_factor * median).clamp(min=settings.guess_factor * self._guess_loss)

    def state_dict(self) -> dict[str, Tensor]:
        return {"losses": self._losses.clone(), "panics": self.panics.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._losses, self.panics = state["losses"].clone(), state["panics"].clone()
