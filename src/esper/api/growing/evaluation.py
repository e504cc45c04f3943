"""Calling the user's `evaluate`, with and without each seed, and making sense of what it returns."""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from esper.kasmina import NOT_MEASURED, GraftedModel
from esper.kasmina.random_state import keeping_random_state, random_state
from esper.leyline import InputError, unknown_name

Measure = Literal["score", "loss"]
"""What `evaluate` returns: a score in [0, 1], higher is better, or a loss, lower is better."""

_RETURNED = "evaluate returned"
_ROUNDING = 1e-6
"""A mean of ones may come out as a little more than 1."""
_WORST_SCORE = -1.0
"""Where a loss is far above what it was at first, how far does not matter any more."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one round of evaluations showed."""

    score: float
    """Quality in [0, 1]."""
    loss: float
    """As `evaluate` returned it; NaN where it returns scores."""
    contributions: Tensor
    """`[1, S]`: score with each blended seed minus without it; NaN where not measured."""

    @property
    def finite(self) -> bool:
        """Whether the network as a whole could be measured."""
        return math.isfinite(self.score)


class Evaluator:
    """Measures a growing network through a function that knows nothing of growth."""

    def __init__(self, evaluate: Callable[..., Any], grafted: GraftedModel, model: nn.Module, measure: Measure) -> None:
        if measure not in get_args(Measure):
            raise unknown_name("measure", measure, get_args(Measure))
        self._call = _calling(evaluate, model)
        self._model = model
        self._grafted = grafted
        self._measure = measure
        self.first_loss = math.nan
        """The loss that counts as a quality of 0: the one before any growth. NaN for scores."""

    def first(self) -> Reading:
        """The reading before any growth; it must be a proper number."""
        value = self._ask()
        if not math.isfinite(value):
            raise InputError(f"evaluate returned {value} before any growth; it must return a finite number")
        if self._measure == "loss":
            if value <= 0:
                raise InputError(f"evaluate returned a loss of {value}; with measure='loss' it has to start above 0")
            self.first_loss = value
        return self._reading(value, torch.full_like(self._grafted.table.contribution, NOT_MEASURED))

    def read(self) -> Reading:
        """Evaluate the network, and once more without each blended seed, all on the same random numbers."""
        grafted, start = self._grafted, random_state(self._grafted)
        contributions = torch.full_like(grafted.table.contribution, NOT_MEASURED)
        reading = self._reading(self._ask(), contributions)
        if not reading.finite:
            return reading
        blended = (grafted.table.occupied & (grafted.table.alpha > 0))[0].nonzero().flatten().tolist()
        for index in blended:
            with keeping_random_state(grafted, start), _silenced(grafted, index):
                without = self._score(self._ask())
            if math.isfinite(without):
                contributions[0, index] = reading.score - without
        return reading

    def _ask(self) -> float:
        """What `evaluate` returns now, asked in eval mode each time, because it may end with `model.train()`."""
        # Both: seeds are beside the given model, not in it, and a wrapper is around the grafted one.
        with _in_eval_mode(self._model, self._grafted):
            return number(self._call(), _RETURNED)

    def _reading(self, value: float, contributions: Tensor) -> Reading:
        return Reading(self._score(value), value if self._measure == "loss" else math.nan, contributions)

    def _score(self, value: float) -> float:
        if self._measure == "loss":
            return max(1 - value / self.first_loss, _WORST_SCORE) if math.isfinite(value) else math.nan
        if math.isfinite(value) and not -_ROUNDING <= value <= 1 + _ROUNDING:
            raise InputError(
                f"evaluate returned {value:g}; a score is between 0 and 1 (divide percent by 100), "
                "or say measure='loss' if lower is better"
            )
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
def _silenced(grafted: GraftedModel, index: int) -> Iterator[None]:
    """The network without one seed. Its alpha changes in place, so that a compiled model need not compile again."""
    alpha: Tensor = grafted.slots[index].alpha  # type: ignore[assignment]  # a ModuleList forgets what it holds
    before = alpha.clone()
    alpha.zero_()
    try:
        yield
    finally:
        alpha.copy_(before)


@contextmanager
def _in_eval_mode(*networks: nn.Module) -> Iterator[None]:
    """Eval mode; afterwards every module is in the mode it was in before, whatever happened in between."""
    modes = {module: module.training for network in networks for module in network.modules()}
    for network in networks:
        network.eval()
    try:
        yield
    finally:
        # By `train` first: some modules do more there than set the flag, such as splitting merged weights again.
        for module, mode in modes.items():
            if module.training != mode:
                module.train(mode)
        for module, mode in modes.items():
            module.training = mode
