"""Noticing that training has failed: numbers that are not finite, a loss that explodes, a score that collapses."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from esper.tolaria import Governor, GovernorSettings

_SMALLEST_SCORE = 0.01
"""Scores below this are all the same: as bad as can be."""
_BY_SCORE = GovernorSettings(guess_factor=0.0)
"""A score has no value of guessing; only the fall against what was counts."""


def _badness(score: float) -> float:
    """What the governor takes for a loss where only scores are known: three times as much is a third of the score."""
    return 1 / max(score, _SMALLEST_SCORE)


class Guard:
    """Judges the epochs of one model with tolaria's governor, by losses where there are any and by scores."""

    def __init__(self, first_score: float, first_loss: float) -> None:
        self._by_score = Governor(1, _badness(first_score), _BY_SCORE) if math.isnan(first_loss) else None
        self._by_loss = None if math.isnan(first_loss) else Governor(1, first_loss)
        self._first_loss = first_loss
        self.failures = 0
        """Epochs that failed in a row."""

    def judge(self, score: float, loss: float, train_loss: float | None, network: nn.Module) -> str | None:
        """Why this epoch has to be undone; None if it was good. `loss` is NaN where `evaluate` returns scores."""
        reason = _not_finite(network, score, train_loss) or self._judge_losses(loss, train_loss)
        if reason is None and self._by_score is not None and _panics(self._by_score, _badness(score)):
            reason = f"the score fell to {score:.3g}, less than a third of its recent median"
        self.failures = self.failures + 1 if reason else 0
        return reason

    def _judge_losses(self, loss: float, train_loss: float | None) -> str | None:
        known = [value for value in (train_loss, loss) if value is not None and not math.isnan(value)]
        if not known:
            return None
        if self._by_loss is None:
            self._first_loss = known[0]
            self._by_loss = Governor(1, self._first_loss)
        # Ratios mean nothing for losses that start at or below 0, such as log-likelihoods.
        if self._first_loss <= 0 or not _panics(self._by_loss, known[0], known[-1]):
            return None
        return self._by_loss.explain(known[0] if train_loss is not None else known[-1], known[-1], 0)

    def state_dict(self) -> dict[str, Any]:
        """What it remembers."""
        by_score, by_loss = (None if one is None else one.state_dict() for one in (self._by_score, self._by_loss))
        return {
            "by_score": by_score,
            "by_loss": by_loss,
            "first_loss": self._first_loss,
            "failures": self.failures,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Remember it again."""
        self._first_loss, self.failures = state["first_loss"], state["failures"]
        self._by_loss = None if state["by_loss"] is None else Governor(1, self._first_loss)
        for governor, saved in ((self._by_score, state["by_score"]), (self._by_loss, state["by_loss"])):
            if governor is not None and saved is not None:
                governor.load_state_dict(saved)


def _panics(governor: Governor, train_loss: float, val_loss: float | None = None) -> bool:
    last = train_loss if val_loss is None else val_loss
    return bool(governor.judge(torch.tensor([train_loss]), torch.tensor([last]), torch.tensor([True])))


def _not_finite(network: nn.Module, score: float, train_loss: float | None) -> str | None:
    if train_loss is not None and not math.isfinite(train_loss):
        return f"training loss is {train_loss}"
    if not math.isfinite(score):
        return f"evaluate returned {score}"
    for name, parameter in network.named_parameters():
        if not _all_finite(parameter):
            return f"the parameter {name.removeprefix('host.')} holds values that are not finite"
    return None


def _all_finite(tensor: Tensor) -> bool:
    return bool(tensor.detach().isfinite().all())
