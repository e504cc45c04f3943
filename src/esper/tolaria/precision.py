"""Mixed precision: one host's passes in a shorter number format, its small gradients kept from vanishing."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

_SHORT = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_GROWTH_INTERVAL = 200
"""Steps without overflow until the scale doubles; torch's 2,000 are more than an episode usually has."""


class HostPrecision:
    """The number format of one host's training, and for float16 the loss scaler that belongs to this host alone.

    The order of a step is: `autocast` around the forward pass and the loss, `backward` for every loss of the step,
    shadow passes included, `unscale`, then gradient norms and clipping, then `step`.

    Why a scaler per host: hosts on several devices train on streams of their own. A scaler that they shared would be
    a race: one host's overflow would change the scale between the forward pass and the unscaling of another, and the
    outcome would depend on which stream came first. With its own scaler, everything that touches a host's scale is
    queued on the stream of that host, in order, and a host learns the same whatever runs beside it.

    Where the scale changes: in `step`, by `GradScaler.update`, on the device. Where gradients overflowed, that halves
    it, and the optimiser's step was skipped, for the host and all its seeds.

    Reading the scale on the host computer needs a sync of the stream that changes it. Nothing in a step reads it; only
    `state_dict` does, and it synchronises the current stream first, so it has to be called on that stream.

    bfloat16 has the range of float32 and float32 needs nothing, so both go without a scaler.
    """

    def __init__(self, precision: str, device: torch.device) -> None:
        self._dtype = _SHORT.get(precision)
        self._device = device
        # One that is not enabled passes everything through as it is.
        self._scaler = GradScaler(device.type, growth_interval=_GROWTH_INTERVAL, enabled=precision == "float16")

    @property
    def skips_steps(self) -> bool:
        """Whether steps whose gradients overflow are skipped, which is normal and mends itself."""
        return self._scaler.is_enabled()

    def autocast(self) -> AbstractContextManager[Any]:
        """Inside, passes use the short format where that is safe."""
        return nullcontext() if self._dtype is None else torch.autocast(self._device.type, self._dtype)

    def backward(self, loss: Tensor) -> None:
        self._scaler.scale(loss).backward()

    def unscale(self, optimizer: Optimizer) -> None:
        """Make gradients what they are; to be called before anything looks at them."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer) -> None:
        """Step, unless gradients overflowed, and adapt the scale."""
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        if self.skips_steps and self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return self._scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._scaler.load_state_dict(dict(state))
