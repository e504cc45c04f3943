"""Value targets in units of their own size.

Policy and value share a trunk. If returns are in the hundreds, the value gradient drowns the policy's; if they are
thousandths, the value learns nothing. The value head therefore predicts returns divided by a running root mean square.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from esper.simic.control.normalization import RunningMeanStd

SCALE_MOMENTUM = 0.9
"""Share of the old statistics that each update keeps: returns grow as the policy improves, the scale follows."""
SCALE_FLOOR = 1e-4
"""Returns smaller than this are taken as nothing, not blown up."""


class ReturnScale:
    """The running scale of returns. When it moves, the value head is rescaled so that its predictions do not."""

    def __init__(self, device: torch.device, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self._statistics = RunningMeanStd((), device, momentum=SCALE_MOMENTUM)

    @property
    def scale(self) -> Tensor:
        """What scaled values are multiplied with to give returns; 1 before the first update."""
        if not self.enabled:
            return torch.ones((), device=self._statistics.device)
        # Root mean square and not standard deviation: constant returns have a size but no spread.
        return (self._statistics.var + self._statistics.mean.square()).sqrt().clamp(min=SCALE_FLOOR).float()

    @torch.no_grad()
    def update(self, returns: Tensor, value_layer: nn.Linear) -> None:
        """Take in `returns [M]`; `value_layer` then gives the same raw values as before under the new scale."""
        if self.enabled:
            old = self.scale
            self._statistics.update(returns)
            value_layer.weight.mul_(old / self.scale)
            value_layer.bias.mul_(old / self.scale)

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the statistics."""
        return self._statistics.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `state_dict`."""
        self._statistics.load_state_dict(state)
