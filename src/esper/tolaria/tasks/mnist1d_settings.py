"""The settings of the MNIST-1D generator as text: `key=value,...`, as in `corr_noise_scale=0.5,seed=7`."""

import math
from collections.abc import Mapping
from functools import cache

from esper.leyline import InputError

Setting = int | float | bool | list[int]


@cache
def published() -> Mapping[str, Setting]:
    """Every argument of the generator and its published value; the address of the published file is none."""
    # The generator brings pictures and interpolation along, which most users of this package never need.
    from mnist1d.data import get_dataset_args

    return {key: value for key, value in get_dataset_args(as_dict=True).items() if key != "url"}


_LEAST = {
    "num_samples": 20,
    "template_len": 1,
    "padding": 0,
    "max_translation": 1,
    "final_seq_length": 8,
    "seed": 0,
    "scale_coeff": 0,
    "corr_noise_scale": 0,
    "iid_noise_scale": 0,
    "shear_scale": 0,
}
_MOST = {"num_samples": 1_000_000, "template_len": 10_000, "padding": 10_000, "final_seq_length": 10_000}
_SEED_END = 2**32  # numpy's own limit


def parse_settings(text: str) -> dict[str, Setting]:
    """The settings in `text` that differ from the published ones, in the generator's order."""
    given: dict[str, Setting] = {}
    for entry in text.split(","):
        key, equals, value = (part.strip() for part in entry.partition("="))
        if not equals or key not in published():
            raise _refusal(f"has no {entry.strip()!r}")
        if key in given:
            raise _refusal(f"has {key} twice")
        given[key] = _parse_value(key, value)
    _check_together({**published(), **given})
    return {key: given[key] for key in published() if key in given and given[key] != published()[key]}


def canonical_settings(settings: Mapping[str, Setting]) -> str:
    """The one way to write `settings`."""
    return ",".join(f"{key}={_show(settings[key])}" for key in published() if key in settings)


def _show(value: Setting) -> str:
    if isinstance(value, list):
        return "-".join(str(part) for part in value)
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _parse_value(key: str, text: str) -> Setting:
    default = published()[key]
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, list):
            low, high = (int(part) for part in text.split("-"))
            if not _LEAST[key] <= low <= high <= _MOST[key]:
                raise ValueError
            return [low, high]
        number = int(text) if isinstance(default, int) else float(text)
    except (ValueError, KeyError):
        raise _refusal(f"cannot take {text!r} as {key}, published as {_show(default)}") from None
    if not (-math.inf < number < math.inf and _LEAST.get(key, -math.inf) <= number <= _MOST.get(key, math.inf)):
        raise _refusal(f"cannot take {text!r} as {key}: it is out of range")
    return number


def _check_together(settings: Mapping[str, Setting]) -> None:
    """Refuse settings that the generator would take but that give no usable data."""
    num_samples, train_split = settings["num_samples"], settings["train_split"]
    assert isinstance(num_samples, int)
    assert isinstance(train_split, int | float)
    kept = num_samples // 10 * 10  # as many of each of the ten classes
    if not (0 < train_split < 1 and int(kept * train_split) >= 10 and kept - int(kept * train_split) >= 1):
        raise _refusal(f"cannot split {num_samples} samples at train_split={train_split}")
    seed = settings["seed"]
    if not (isinstance(seed, int) and seed < _SEED_END):
        raise _refusal(f"cannot take {seed} as seed: it must be below 2^32")


def _refusal(reason: str) -> InputError:
    keys = ", ".join(f"{key}={_show(value)}" for key, value in published().items())
    return InputError(f"mnist1d:<key=value,...> {reason}; keys and published values: {keys}")
