"""The signal tracker: what the training of N hosts has looked like so far, as `[N]` tensors."""

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
