"""Forward passes of one network, run as they are written or compiled."""

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
_LOG = logging.getLogger(__name__)


def train_pass(model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of a minibatch, and its logits `[M, C]`."""
    logits = model(x).flatten(0, -2)
    return F.cross_entropy(logits, y.flatten()), logits


def eval_pass(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return model(x)


class Passes:
    """Runs passes as they are written."""

    def __call__(self, run: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return run(*args, **kwargs)


class CompiledPasses(Passes):
    """Runs passes compiled; what is compiled is compiled at the first call.

    The network is an argument, so what is compiled serves every host that has the same seeds in the same slots, for
    any batch size; another structure is compiled when it first appears. Where compiling fails, that is said once, and
    from then on all passes run as they are written.
    """

    def __init__(self) -> None:
        self._works = True
        self._compiled: dict[object, Callable[..., object]] = {}

    def __call__(self, run: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if self._works:
            try:
                if run not in self._compiled:
                    # In here, because on some platforms even asking fails.
                    self._compiled[run] = torch.compile(run, dynamic=True)
                return self._compiled[run](*args, **kwargs)  # type: ignore[return-value]
            except Exception as error:  # whatever a backend may raise; a fault of the network itself is raised below
                self._works = False
                _LOG.warning("hosts run uncompiled, because compiling failed: %s: %s", type(error).__name__, error)
        return run(*args, **kwargs)


EAGER = Passes()
COMPILED = CompiledPasses()
"""One for the whole process: compiled code is kept, and a failure told, once."""
