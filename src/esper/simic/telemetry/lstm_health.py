"""The policy's memory in eight numbers."""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from esper.leyline import LSTM_MAGNITUDE
from esper.simic.agent.types import Hidden


@dataclass(frozen=True, slots=True)
class LSTMHealth:
    """LSTM states h and c of any shape. Numbers leave out what is not finite, so that the flags alone tell of it."""

    h_rms: float
    c_rms: float
    h_max: float
    """Largest magnitude."""
    c_max: float
    h_mean: float
    h_std: float
    has_nan: bool
    has_inf: bool

    def is_healthy(self, limit: float = LSTM_MAGNITUDE) -> bool:
        """Finite, and no magnitude above `limit`."""
        return not (self.has_nan or self.has_inf) and max(self.h_max, self.c_max) <= limit

    def to_dict(self) -> dict[str, float]:
        """As plain numbers."""
        return {name: float(value) for name, value in asdict(self).items()}


@torch.no_grad()
def compute_lstm_health(hidden: Hidden | None) -> LSTMHealth | None:
    """The health of `hidden` (h and c), fetched from the device in one transfer; None if there is none."""
    if hidden is None:
        return None
    h, c = (state.float() for state in hidden)
    finite_h, finite_c = (state.nan_to_num(0.0, 0.0, 0.0) for state in (h, c))
    numbers = [
        finite_h.square().mean().sqrt(),
        finite_c.square().mean().sqrt(),
        finite_h.abs().amax(),
        finite_c.abs().amax(),
        finite_h.mean(),
        finite_h.std(correction=0),
        _flag(h.isnan(), c.isnan()),
        _flag(h.isinf(), c.isinf()),
    ]
    h_rms, c_rms, h_max, c_max, h_mean, h_std, has_nan, has_inf = torch.stack(numbers).tolist()
    return LSTMHealth(h_rms, c_rms, h_max, c_max, h_mean, h_std, bool(has_nan), bool(has_inf))


def _flag(first: Tensor, second: Tensor) -> Tensor:
    return (first.any() | second.any()).float()
