"""What fields of a config may hold: types as they are declared, numbers in their ranges, one clear line otherwise."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from esper.leyline import InputError

FIRST_LESSON = 1_000_000
"""The number of the first round with a teacher. A run has no more rounds than this, so that lessons, whose episodes are
seeded by this number, share no seed with them."""
_INFINITY = math.inf
_WHOLE_NUMBER_END = 2**63
RANGES: tuple[tuple[str, float, float, bool, bool], ...] = (
    ("envs", 1, _INFINITY, True, False),
    ("rounds", 1, FIRST_LESSON, True, True),
    ("episode_length", 1, _INFINITY, True, False),
    ("seed", 0, 2**62, True, False),
    ("workers", 1, _INFINITY, True, False),
    ("budget", 0, _INFINITY, True, False),
    ("flop_price", 0, _INFINITY, True, False),
    ("seed_lr_scale", 0, _INFINITY, False, False),
    ("twin_weight", 0, 1, True, True),
    ("distinct_rounds", 1, _INFINITY, True, False),
    ("batches_per_epoch", 1, _INFINITY, True, False),
    ("batch_size", 1, _INFINITY, True, False),
    ("host_lr", 0, _INFINITY, False, False),
    ("lessons", 1, _INFINITY, True, False),
    ("lesson_passes", 1, _INFINITY, True, False),
    ("lesson_lr", 0, _INFINITY, False, False),
    ("lesson_smoothing", 0, 1, True, False),
    ("lesson_detail_smoothing", 0, 1, True, False),
    ("lstm_hidden_dim", 1, _INFINITY, True, False),
    ("lr", 0, _INFINITY, False, False),
    ("head_lr_scale", 0, _INFINITY, False, False),
    ("gamma", 0, 1, False, True),
    ("gae_lambda", 0, 1, True, True),
    ("value_lambda", 0, 1, True, True),
    ("value_memory", 0, _INFINITY, True, False),
    ("clip_ratio", 0, 1, False, True),
    ("target_kl", 0, _INFINITY, False, False),
    ("epochs", 1, 4, True, True),
    ("num_minibatches", 1, _INFINITY, True, False),
    ("entropy_coef", 0, _INFINITY, True, False),
    ("entropy_coef_min", 0, _INFINITY, True, False),
    ("entropy_coef_per_head", 0, _INFINITY, True, False),
    ("entropy_decay", 0, 1, True, True),
    ("value_coef", 0, _INFINITY, True, False),
    ("huber_delta", 0, _INFINITY, False, False),
    ("value_clip", 0, _INFINITY, False, False),
    ("max_grad_norm", 0, _INFINITY, False, False),
    ("weight_decay", 0, _INFINITY, True, False),
    ("op_bias", -10, 10, True, True),
    ("stable_improvement", 0, _INFINITY, True, False),
    ("stable_epochs", 1, _INFINITY, True, False),
    ("validate_every", 0, _INFINITY, True, False),
    ("validation_episodes", 1, _INFINITY, True, False),
    ("checkpoint_every", 1, _INFINITY, True, False),
    ("keep_checkpoints", 1, _INFINITY, True, False),
    ("anomaly_max_ratio_threshold", 1, _INFINITY, False, False),
    ("anomaly_min_ratio_threshold", 0, 1, True, False),
    ("anomaly_min_explained_variance", -_INFINITY, 1, False, True),
    ("anomaly_entropy_limit", 0, 1, True, True),
    ("anomaly_kl_limit", 0, _INFINITY, False, False),
    ("anomaly_drift_limit", 0, _INFINITY, False, False),
    ("critic_rounds", 0, _INFINITY, True, False),
)
"""Field, lowest and highest value, and whether each of them is itself allowed."""


def _validate_range(
    value: float, name: str, low: float, high: float, *, low_inclusive: bool = True, high_inclusive: bool = True
) -> None:
    """Refuse a value outside the interval, NaN and infinities included, naming the field and the interval."""
    above = value >= low if low_inclusive else value > low
    below = value <= high if high_inclusive else value < high
    # Compared with infinity, because isfinite cannot take whole numbers beyond what a float can hold.
    if not (-math.inf < value < math.inf and above and below):
        interval = f"{'[' if low_inclusive else '('}{low:g}, {high:g}{']' if high_inclusive else ')'}"
        raise InputError(f"{name} must be in {interval}; got {value}")


def check_ranges(config: Any) -> None:
    """Refuse a field out of its range; in a tuple or a mapping, every number counts."""
    for name, low, high, low_in, high_in in RANGES:
        for place, number in _numbers(name, getattr(config, name)):
            if isinstance(number, int) and abs(number) >= _WHOLE_NUMBER_END:
                raise InputError(f"{place} must fit into 64 bits; got {number}")
            _validate_range(number, place, low, high, low_inclusive=low_in, high_inclusive=high_in)


def _numbers(name: str, value: Any) -> list[tuple[str, float]]:
    """The numbers in a field, each with the name it goes by."""
    if isinstance(value, Mapping):
        return [(f"{name}.{key}", number) for key, number in value.items()]
    return [(name, number) for number in (value if isinstance(value, tuple) else (value,)) if number is not None]


def _matches(value: object, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return True  # names are checked with their choices
    if get_origin(hint) is tuple:
        inner = [kind for kind in get_args(hint) if kind is not Ellipsis]
        long_enough = Ellipsis in get_args(hint) or (isinstance(value, tuple) and len(value) == len(inner))
        return isinstance(value, tuple) and long_enough and all(_matches(item, inner[0]) for item in value)
    if get_origin(hint) is dict:
        keys, values = get_args(hint)
        return isinstance(value, dict) and all(_matches(k, keys) and _matches(v, values) for k, v in value.items())
    if get_args(hint):
        return any(_matches(value, option) for option in get_args(hint))
    if hint in (int, float):
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    return isinstance(value, hint)


def check_types(config: Any, prefix: str = "") -> None:
    """Refuse a field whose value is not of the type it is declared with, naming both."""
    hints = get_type_hints(type(config))
    for spec in fields(config):
        value, hint = getattr(config, spec.name), hints[spec.name]
        if not _matches(value, hint):
            raise InputError(f"{prefix}{spec.name} must be {_describe(hint)}; got {value!r}")


def _describe(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")
