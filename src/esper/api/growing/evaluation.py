"""Measuring a user's model: what `evaluate` returns, with and without each seed, averaged over processes.

A score in [0, 1] is used as it is. Of everything else only differences are known, so they need a unit: for a loss its
present value, for any other metric the range it has covered so far. Both are local: neither the untrained network nor
the units of the measure matter, and a metric may be shifted by any constant.

Processes that train one model together measure the same, decide the same and keep their seeds equal. Without
`torch.distributed`, or with one process, that costs nothing.
"""

import inspect
import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

from esper.kasmina import NOT_MEASURED, GraftedModel
from esper.kasmina.keeping import evaluating, keeping_random_state, random_state
from esper.kasmina.slot import SlotMode
from esper.leyline import InputError, unknown_name

Measure = Literal["score", "loss"]
"""What `evaluate` returns: a score in [0, 1], higher is better, or a loss above 0, lower is better."""

Kind = Literal["score", "loss", "higher is better", "lower is better"]
"""The two measures, and what is known of any other metric."""

_ROUNDING = 1e-6
"""Tolerance for rounding: a mean of ones may exceed 1 slightly."""
_SMALLEST_SHARE = 1e-12
"""Losses below this share of the first one are as good as 0."""
_WORST_SCORE = -1.0
"""Where training has gone far back, how far does not matter any more."""
_ANY_METRIC = "higher_is_better=True or False is for metrics that may take any value"
_RETURNED = "evaluate returned"
_RUIN = -1.0
"""What a trial alpha brings if the network is not finite with it."""


def make_scale(measure: Measure | None, higher_is_better: bool | None) -> "Scale":
    if higher_is_better is None:
        if measure is not None and measure not in get_args(Measure):
            raise unknown_name("measure", measure, get_args(Measure))
        return LossScale() if measure == "loss" else Scale()
    if measure is not None:
        raise InputError(f"measure={measure!r} tells which way is better; leave out one of the two: {_ANY_METRIC}")
    if not isinstance(higher_is_better, bool):
        raise InputError(f"higher_is_better must be True or False; got {higher_is_better!r}")
    return MetricScale(higher_is_better)


class Scale:
    """A score in [0, 1], used as it is."""

    kind: Kind = "score"

    def check(self, value: float) -> None:
        """Raise if this finite value cannot be what `evaluate` was said to return."""
        if not -_ROUNDING <= value <= 1 + _ROUNDING:
            raise InputError(
                f"evaluate returned {value:g}; a score is between 0 and 1 (divide percent by 100). "
                f"measure='loss' is for losses above 0; {_ANY_METRIC}"
            )

    def begin(self, value: float) -> None:
        """Start with the value of the untrained network."""

    def score(self, value: float) -> float:
        """Quality of a network that measures `value`, in about [0, 1] and comparable over epochs."""
        return value

    def gain(self, value: float, without: float) -> float:
        """What a seed brings, in [-1, 1], if the network measures `value` with it and `without` without it."""
        return value - without

    def keep(self, value: float) -> None:
        """Remember the value of a good epoch."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Remember it again."""


class MetricScale(Scale):
    """Any metric with a direction. Differences are relative to the range that the metric has covered.

    That range is from the lower quartile of all values so far to the best one, so that the untrained network and the
    first leaps do not count for long. The score is `1 - exp(-gains since the first epoch)`: from 0 towards 1.
    """

    def __init__(self, higher_is_better: bool) -> None:
        self.kind = "higher is better" if higher_is_better else "lower is better"
        self._sign = 1.0 if higher_is_better else -1.0
        self._values: list[float] = []
        """Of the untrained network, then of each good epoch."""
        self._progress = 0.0
        """Sum of all gains since the first good epoch."""

    def check(self, value: float) -> None:
        pass  # any number is fine

    def begin(self, value: float) -> None:
        self._values = [value]

    def score(self, value: float) -> float:
        return 1 - math.exp(-max(self._progress_at(value), -math.log(1 - _WORST_SCORE)))

    def gain(self, value: float, without: float) -> float:
        return _cut(self._difference(value, without))

    def keep(self, value: float) -> None:
        self._progress = self._progress_at(value)
        self._values.append(value)

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self._values), "progress": self._progress}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._values, self._progress = [float(value) for value in state["values"]], float(state["progress"])

    def _progress_at(self, value: float) -> float:
        started = len(self._values) > 1
        return self._progress + self._difference(value, self._values[-1]) if started else 0.0

    def _difference(self, value: float, other: float) -> float:
        values = [self._sign * one for one in (*self._values, value)]
        covered = max(values) - statistics.quantiles(values, n=4, method="inclusive")[0]
        difference = self._sign * (value - other)
        # Of a metric that has not moved yet only the sign of a difference is known.
        return _cut(difference / covered) if covered > 0 else math.copysign(float(difference != 0), difference)


class LossScale(MetricScale):
    """A loss that cannot fall below 0. Differences are relative to the present loss: 5 % less is 0.05."""

    def __init__(self) -> None:
        super().__init__(higher_is_better=False)
        self.kind = "loss"

    def begin(self, value: float) -> None:
        if value <= 0:
            raise InputError(
                f"evaluate returned a loss of {value:g}; with measure='loss' it has to start above 0. {_ANY_METRIC}"
            )
        super().begin(value)

    def keep(self, value: float) -> None:
        """Remember the loss of a good epoch; say so if it is one that has no ratios."""
        if value < 0 <= min(self._values):
            warnings.warn(
                f"evaluate returned a loss of {value:g}; from now on contributions are relative to the range that it "
                "has covered, as with higher_is_better=False, which is for losses that may fall below 0",
                stacklevel=4,
            )
        super().keep(value)

    def _difference(self, value: float, other: float) -> float:
        if min(value, other, *self._values) < 0:
            return super()._difference(value, other)
        floor = _SMALLEST_SHARE * self._values[0]
        return math.log(max(other, floor) / max(value, floor))


def _cut(value: float) -> float:
    return max(-1.0, min(value, 1.0))


@dataclass(frozen=True, slots=True)
class Reading:
    """Result of one round of evaluations: the mean over all processes that train the model."""

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
        """The reading before any growth; it must be finite."""
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

    Alpha changes in place, so that a compiled model need not be recompiled. An isolated seed has no effect at any alpha
    and has to change its mode; that runs uncompiled, because it happens once.
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


def several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def mean_over_ranks(values: Tensor, device: torch.device) -> Tensor:
    """The mean of `values` over all processes; NaN where any has NaN."""
    if not several():
        return values
    moved = values.to(device, copy=True)
    dist.all_reduce(moved)
    return (moved / dist.get_world_size()).to(values.device)


def of_first_rank(values: Tensor, device: torch.device) -> Tensor:
    if not several():
        return values
    moved = values.to(device, copy=True)
    dist.broadcast(moved, 0)
    return moved.to(values.device)


def anywhere(flag: bool, device: torch.device) -> bool:
    return bool(mean_over_ranks(torch.tensor([float(flag)]), device) > 0)


def tend_seeds(grafted: GraftedModel) -> None:
    """Average the gradients of seeds over all processes, as `DistributedDataParallel` does for the host.

    That wrapper knows only the parameters that were there when it was made, and expects to see all of them
    again; it is told to leave seeds alone. Averaging what is already an average changes nothing, so gradients
    that accumulate over several backward passes come out right.
    """
    if not several():
        return
    names = [f"slots.{name}" for name, _ in grafted.slots.named_parameters()]
    grafted._ddp_params_and_buffers_to_ignore = names  # type: ignore[assignment]  # where the wrapper looks for them
    for parameter in grafted.slots.parameters():
        if not parameter._post_accumulate_grad_hooks:
            parameter.register_post_accumulate_grad_hook(_average)


def _average(parameter: Tensor) -> None:
    if parameter.grad is not None:
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(dist.get_world_size())
