"""Calling the user's `evaluate`, with and without each seed, and making sense of what it returns."""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from esper.api.growing.ranks import mean_over_ranks
from esper.api.growing.scale import Scale
from esper.kasmina import NOT_MEASURED, GraftedModel
from esper.kasmina.modes import evaluating
from esper.kasmina.random_state import keeping_random_state, random_state
from esper.kasmina.slot import SlotMode
from esper.leyline import InputError

_RETURNED = "evaluate returned"
_RUIN = -1.0
"""What an alpha brings with which the network is no longer finite."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one round of evaluations showed: the mean over all processes that train the model."""

    value: float
    """As `evaluate` returned it."""
    score: float
    """Quality for controllers, as the scale of the measure has it; NaN if the value is not finite."""
    contributions: Tensor
    """`[1, S]`: what each blended seed brings, in units of score; NaN where not measured."""
    trials: Tensor
    """`[1, S]`: what the alpha to be tried would bring, in units of score; NaN where none was tried."""


class Evaluator:
    """Measures a growing network through a function that knows nothing of growth."""

    def __init__(
        self, evaluate: Callable[..., Any], grafted: GraftedModel, model: nn.Module, scale: Scale, device: torch.device
    ) -> None:
        self._call = _calling(evaluate, model)
        # Seeds are beside the given model, not in it, and a wrapper is around the grafted one.
        self._networks = [grafted] if model is grafted.host else [model, grafted]
        self._grafted = grafted
        self._device = device
        self.scale = scale

    def first(self) -> Reading:
        """The reading before any growth; it must be a proper number."""
        value = self._ask()
        if not math.isfinite(value):
            raise InputError(f"evaluate returned {value} before any growth; it must return a finite number")
        value = self._over_ranks([value])[0]
        self.scale.begin(value)
        return Reading(value, self.scale.score(value), *self._not_measured())

    def read(self, without: Tensor | None = None, trials: Tensor | None = None) -> Reading:
        """Evaluate the network, and once more without each of some blended seeds, all on the same random numbers.

        `without [1, S]` (bool) says which seeds; `trials [1, S]` are alphas at which single seeds are tried as well,
        NaN where they are not.
        """
        grafted, forced = self._grafted, list[tuple[int, float]]()
        if without is not None:
            forced = [(index, 0.0) for index in (without & grafted.table.blended)[0].nonzero().flatten().tolist()]
        if trials is not None:
            forced += [(index, alpha) for index, alpha in enumerate(trials[0].tolist()) if not math.isnan(alpha)]
        start = random_state(grafted) if forced else {}
        own = self._ask()
        others = [math.nan] * len(forced)
        for place, (index, alpha) in enumerate(forced if math.isfinite(own) else []):
            with keeping_random_state(grafted, start), at_alpha(grafted, index, alpha):
                others[place] = self._ask()
        value, *others = self._over_ranks([own, *others])
        contributions, gains = self._not_measured()
        if not math.isfinite(value):
            return Reading(value, math.nan, contributions, gains)
        for (index, alpha), other in zip(forced, others, strict=True):
            if alpha:
                gains[0, index] = -self.scale.gain(value, other) if math.isfinite(other) else _RUIN
            elif math.isfinite(other):
                contributions[0, index] = self.scale.gain(value, other)
        return Reading(value, self.scale.score(value), contributions, gains)

    def _not_measured(self) -> tuple[Tensor, Tensor]:
        unknown = torch.full_like(self._grafted.table.contribution, NOT_MEASURED)
        return unknown, unknown.clone()

    def _over_ranks(self, values: list[float]) -> list[float]:
        means: list[float] = mean_over_ranks(torch.tensor(values, dtype=torch.float64), self._device).tolist()
        return means

    def _ask(self) -> float:
        """What `evaluate` returns now, asked in eval mode each time, because it may end with `model.train()`."""
        with evaluating(*self._networks):
            value = number(self._call(), _RETURNED)
        if math.isfinite(value):
            self.scale.check(value)
        return value


def _calling(evaluate: Callable[..., Any], model: nn.Module) -> Callable[[], Any]:
    """`evaluate` on the model if it takes one, else without arguments."""
    if not callable(evaluate):
        raise InputError(f"evaluate must be a function that returns a score; got {evaluate!r}")
    try:
        signature = inspect.signature(evaluate)
    except ValueError:  # some callables written in C do not tell
        return lambda: evaluate(model)
    for arguments in ((model,), ()):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return lambda: evaluate(*arguments)
    raise InputError(f"evaluate must take the model or nothing; its signature is {signature}")


def number(value: Any, whose: str) -> float:
    """`value` as a float, if it is one number; `whose` it is begins the sentence if not."""
    single = isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
    if not single and not isinstance(value, int | float) and type(value).__module__ == "numpy":
        single = getattr(value, "size", 0) == 1
    if single or isinstance(value, int | float):
        return float(value.item() if single else value)
    shown = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
    raise InputError(f"{whose} {shown}; it must be one number")


@contextmanager
def at_alpha(grafted: GraftedModel, index: int, alpha: float) -> Iterator[None]:
    """The network with one seed at another alpha; 0 is the network without it.

    Alpha changes in place, so that a compiled model need not compile again. An isolated seed is not heard at any alpha
    and has to change its mode; that runs uncompiled, because it is for once.
    """
    slot = grafted.growth.slot_list()[index]
    before, mode = slot.alpha.clone(), slot.mode
    heard = alpha > 0 and mode is not SlotMode.BLENDED
    slot.alpha.fill_(alpha)
    try:
        with torch.compiler.set_stance("force_eager") if heard else nullcontext():
            slot.mode = SlotMode.BLENDED if heard else mode
            yield
    finally:
        slot.alpha.copy_(before)
        slot.mode = mode
