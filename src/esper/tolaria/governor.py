"""Signals, which tell how the training of N hosts has gone so far, and the governor, which tells when it failed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

HISTORY = 5
"""How many epochs the histories hold."""


@dataclass(frozen=True, slots=True)
class TrackerSettings:
    """When a host counts as standing still, and when as stable enough for seeds."""

    plateau_gain: float = 0.005
    """A score gain above this ends a plateau."""
    stable_improvement: float = 0.03
    """Relative fall of the validation loss below which an epoch counts as stable."""
    stable_epochs: int = 3
    """Stable epochs in a row that close the latch; it stays closed."""


@dataclass(slots=True)
class SignalTable:
    """Signals of N hosts: fields `[N]`, histories `[N, 5]` with the latest epoch last; NaN means not yet measured."""

    epoch: Tensor
    train_loss: Tensor
    val_loss: Tensor
    train_score: Tensor
    val_score: Tensor
    loss_delta: Tensor
    score_delta: Tensor
    best_val_loss: Tensor
    best_val_score: Tensor
    plateau_epochs: Tensor
    """Epochs in a row without a gain in score worth the name."""
    stable_epochs: Tensor
    stable: Tensor
    """The latch: the host has been stable for long enough, once."""
    host_grad_norm: Tensor
    loss_history: Tensor
    score_history: Tensor

    @classmethod
    def empty(cls, num_hosts: int) -> Self:
        unknown = torch.full((num_hosts,), torch.nan)
        zeros = torch.zeros(num_hosts, dtype=torch.int64)
        history = torch.full((num_hosts, HISTORY), torch.nan)
        given = {
            "epoch": zeros,
            "plateau_epochs": zeros,
            "stable_epochs": zeros,
            "stable": torch.zeros(num_hosts, dtype=torch.bool),
            "loss_history": history,
            "score_history": history,
        }
        return cls(**{spec.name: given.get(spec.name, unknown).clone() for spec in fields(cls)})

    def columns(self) -> dict[str, Tensor]:
        return {spec.name: getattr(self, spec.name) for spec in fields(self)}

    def clone(self) -> Self:
        return type(self)(**{name: column.clone() for name, column in self.columns().items()})

    def where(self, hosts: Tensor, other: Self) -> Self:
        """These signals for `hosts [N]` (bool), `other` for the rest."""
        pairs = zip(self.columns().items(), other.columns().values(), strict=True)
        chosen = {name: torch.where(hosts.view(-1, *[1] * (a.ndim - 1)), a, b) for (name, a), b in pairs}
        return type(self)(**chosen)


def track(
    table: SignalTable,
    settings: TrackerSettings,
    *,
    train_loss: Tensor,
    train_score: Tensor,
    val_loss: Tensor,
    val_score: Tensor,
    host_grad_norm: Tensor,
) -> SignalTable:
    """The table after one more epoch with these results, all `[N]`."""
    gained = table.best_val_score.isnan() | (val_score > table.best_val_score + settings.plateau_gain)
    improvement = (table.val_loss - val_loss) / table.val_loss.abs()
    stable_epochs = torch.where(improvement < settings.stable_improvement, table.stable_epochs + 1, 0)
    return SignalTable(
        epoch=table.epoch + 1,
        train_loss=train_loss,
        val_loss=val_loss,
        train_score=train_score,
        val_score=val_score,
        loss_delta=val_loss - table.val_loss,
        score_delta=val_score - table.val_score,
        best_val_loss=torch.fmin(table.best_val_loss, val_loss),
        best_val_score=torch.fmax(table.best_val_score, val_score),
        plateau_epochs=torch.where(gained, 0, table.plateau_epochs + 1),
        stable_epochs=stable_epochs,
        stable=table.stable | (stable_epochs >= settings.stable_epochs),
        host_grad_norm=host_grad_norm,
        loss_history=torch.cat([table.loss_history[:, 1:], val_loss[:, None]], 1),
        score_history=torch.cat([table.score_history[:, 1:], val_score[:, None]], 1),
    )


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
