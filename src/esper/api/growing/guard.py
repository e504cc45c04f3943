"""Noticing that training has failed: numbers that are not finite, a loss that explodes, a score that collapses."""

import math
import statistics
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from esper.api.growing.evaluation import Kind, Reading, anywhere
from esper.tolaria import GovernorSettings

_RULE = GovernorSettings()
_USUAL = (torch.float32, torch.float64)
"""Types that torch has all kernels for."""
_SMALLEST_SCORE = 0.01
"""Scores below this are all the same: as bad as can be."""


class Guard:
    """Judges the epochs of one model by the rule of tolaria's governor.

    Training losses are held against earlier training losses and validation losses against validation losses, because
    the two may be different functions. A metric that may take any value has to be finite, no more.
    """

    def __init__(self, kind: Kind, first: float, network: nn.Module, device: torch.device) -> None:
        self._device = device
        self._series = {"training loss": _Losses()}
        if kind == "loss":
            self._series["validation loss"] = _Losses(first)
        elif kind == "score":
            # A score has no value of guessing; only the fall against what was counts.
            self._series["score"] = _Losses(_badness(first), guess_factor=0.0)
        self.failures = 0
        """Epochs that failed in a row."""
        self._finite_buffers: set[str] = set()
        self.expect(network)

    def expect(self, network: nn.Module) -> None:
        """An epoch begins. Buffers that are finite now have to stay so; others, such as masks of -inf, need not."""
        buffers = dict(network.named_buffers())
        self._finite_buffers = set(buffers).difference(_not_finite(buffers))

    def judge(self, reading: Reading, train_loss: float | None, network: nn.Module) -> str | None:
        """Why this epoch has to be undone; None if it was good."""
        given = {"training loss": train_loss, "validation loss": reading.value, "score": _badness(reading.value)}
        losses = {name: value for name in self._series if (value := given[name]) is not None}
        reason = self._broken(reading.value, train_loss, network)
        if anywhere(reason is not None, self._device):
            reason = reason or "it failed in another process"
        else:
            reason = self._excess(losses, reading.value)
        if reason is None:
            for name, loss in losses.items():
                self._series[name].append(loss)
        self.failures = self.failures + 1 if reason else 0
        return reason

    def _broken(self, value: float, train_loss: float | None, network: nn.Module) -> str | None:
        if train_loss is not None and not math.isfinite(train_loss):
            return f"training loss is {train_loss}"
        if not math.isfinite(value):
            return f"evaluate returned {value}"
        parameters = dict(network.named_parameters())
        buffers = {name: buffer for name, buffer in network.named_buffers() if name in self._finite_buffers}
        for name in _not_finite(parameters | buffers):
            what = "parameter" if name in parameters else "buffer"
            return f"the {what} {name.removeprefix('host.')} holds values that are not finite"
        return None

    def _excess(self, losses: Mapping[str, float], value: float) -> str | None:
        for name, loss in losses.items():
            limit = self._series[name].limit
            if loss > limit and name == "score":
                return f"the score fell to {value:.3g}, less than a third of its recent median"
            if loss > limit:
                return f"{name} {loss:.3g} exceeds {limit:.3g}"
        return None

    def state_dict(self) -> dict[str, Any]:
        return {
            "series": {name: series.state_dict() for name, series in self._series.items()},
            "failures": self.failures,
            "finite_buffers": sorted(self._finite_buffers),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, series in self._series.items():
            series.load_state_dict(state["series"][name])
        self.failures = state["failures"]
        self._finite_buffers = {str(name) for name in state["finite_buffers"]}


class _Losses:
    """The losses of good epochs, all of one kind, and how high the next may be."""

    def __init__(self, first: float | None = None, guess_factor: float = _RULE.guess_factor) -> None:
        self._guess_factor = guess_factor
        self._first = first
        self._recent: list[float] = []
        self._signed = False

    @property
    def limit(self) -> float:
        """Infinite if there is nothing to compare with, or if losses fall below 0, where ratios mean nothing."""
        if not self._first or self._signed:
            return math.inf
        median = statistics.median(self._recent or [self._first])
        return max(_RULE.explosion_factor * median, self._guess_factor * self._first)

    def append(self, loss: float) -> None:
        self._first = self._first or loss
        self._signed |= loss < 0
        self._recent = [*self._recent, loss][-_RULE.history :]

    def state_dict(self) -> dict[str, Any]:
        return {"first": self._first, "recent": list(self._recent), "signed": self._signed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._first = None if state["first"] is None else float(state["first"])
        self._recent, self._signed = [float(loss) for loss in state["recent"]], bool(state["signed"])


def _badness(score: float) -> float:
    """What counts as a loss where only scores are known: three times as much is a third of the score."""
    return 1 / max(score, _SMALLEST_SCORE)


def _not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors that hold NaN or infinity; one transfer from the device finds them all."""
    values = [one.detach() for one in tensors.values() if one.numel() and _is_floating(one)]
    # The largest absolute value tells of all at once whether there is anything to look for.
    if all(one.dtype in _USUAL for one in values) and get_total_norm(values, math.inf).isfinite():
        return []
    extremes = {name: _extremes(one) for name, one in tensors.items() if one.numel() and _is_floating(one)}
    if not extremes:
        return []
    home = next(iter(extremes.values())).device
    finite = torch.stack([pair.to(home) for pair in extremes.values()]).isfinite().all(1).tolist()
    return [name for name, fine in zip(extremes, finite, strict=True) if not fine]


def _is_floating(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _extremes(tensor: Tensor) -> Tensor:
    """`[2]`: the least and the greatest value, NaN if there is a NaN. Much faster than asking each value."""
    values = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    # There are no such kernels for floats of 8 bits.
    return torch.stack((values.float() if values.itemsize == 1 else values).aminmax())
