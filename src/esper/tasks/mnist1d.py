"""MNIST-1D: ten templates, moved, stretched and drowned in noise; generated here, as published or otherwise.

Other settings of the generator are part of a task's name: `mnist1d:corr_noise_scale=0.5,seed=7`.
"""

import hashlib
import math
import random
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from esper.leyline import InputError
from esper.tasks.files import Arrays, cached_arrays, is_cached
from esper.tasks.registry import (
    VAL_SHARE,
    HostSettings,
    Loader,
    OptimizerSettings,
    Split,
    Splits,
    Task,
    check_split,
    hold_out,
    task,
    task_family,
)

Setting = int | float | bool | list[int]

_KEYS = ("x", "y", "x_test", "y_test")
_CLASSES = 10
_SHORTEST = 8
_HOST_SETTINGS: HostSettings = {"channels": (5, 10, 20)}
_MLP_SETTINGS: HostSettings = {"inputs": 40, "widths": (16, 16, 16)}
_TUNED = OptimizerSettings("adamw", lr=6e-2, schedule="wsd")
_MLP_TUNED = OptimizerSettings("adamw", lr=2e-2, schedule="wsd")
"""Best of the host alone on validation (docs/growth.md)."""
_LEAST = {
    **dict.fromkeys(("padding", "seed", "scale_coeff", "corr_noise_scale", "iid_noise_scale", "shear_scale"), 0),
    "num_samples": 20,
    "template_len": 1,
    "max_translation": 1,
    "final_seq_length": 8,
}
_MOST = {"num_samples": 1_000_000, "template_len": 10_000, "padding": 10_000, "final_seq_length": 10_000}
_SEED_END = 2**32  # numpy's own limit


def _generate(settings: Mapping[str, Setting]) -> Arrays:
    """One draw, the published one but for `settings`, as float32. The generator's global seeding is undone."""
    from mnist1d.data import get_dataset_args, make_dataset

    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        arguments: Any = get_dataset_args()
        for key, value in settings.items():
            setattr(arguments, key, value)
        made = make_dataset(arguments)
    except (ValueError, IndexError, ZeroDivisionError) as error:
        raise InputError(f"mnist1d cannot be generated with {canonical_settings(settings)}: {error}") from None
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
    return {key: made[key].astype(np.float32 if key.startswith("x") else np.int64) for key in _KEYS}


def _check(arrays: Arrays) -> None:
    """Refuse kept arrays that the generator cannot have made."""
    length = arrays["x"].shape[-1] if arrays["x"].ndim else 0
    for x, y in ((arrays["x"], arrays["y"]), (arrays["x_test"], arrays["y_test"])):
        if x.dtype != np.float32 or y.dtype != np.int64 or x.shape != (len(y), length) or length < _SHORTEST:
            raise ValueError(f"it holds {x.dtype}{x.shape} and {y.dtype}{y.shape}")
        check_split("it", torch.from_numpy(x), torch.from_numpy(y), _CLASSES)
    if int(VAL_SHARE * len(arrays["y"])) < 1:
        raise ValueError(f"{len(arrays['y'])} series are too few to hold some out")


def _load(cache_name: str, settings: Mapping[str, Setting]) -> Splits:
    arrays = cached_arrays(cache_name, _KEYS, lambda: _generate(settings), _check)
    data = {name: torch.from_numpy(array) for name, array in arrays.items()}
    train, val = hold_out(Split(data["x"], data["y"]))
    return Splits(train, val, Split(data["x_test"], data["y_test"]))


def _data_note(cache_name: str) -> str:
    return "generated, here" if is_cached(cache_name) else "generated at first use, 5 seconds"


def _register(name: str, summary: str) -> Callable[[Loader], Loader]:
    """Two tasks with the same data: `name` has a host of convolutions, `name-mlp` one that knows nothing of order."""

    def register(load: Loader) -> Loader:
        common = {"classes": _CLASSES, "data": lambda: _data_note(name)}
        task(name, summary, host="conv1d", host_settings=_HOST_SETTINGS, optimizer=_TUNED, **common)(load)
        task(f"{name}-mlp", summary, host="mlp", host_settings=_MLP_SETTINGS, optimizer=_MLP_TUNED, **common)(load)
        return load

    return register


@_register("mnist1d", "MNIST-1D as published; local patterns matter")
def load_mnist1d() -> Splits:
    """3,200 / 800 / 1,000 series of 40 values."""
    return _load("mnist1d", {})


@_register("mnist1d-shuffled", "MNIST-1D, positions permuted")
def load_mnist1d_shuffled() -> Splits:
    """The same series with their positions permuted: what is near says nothing any more."""
    return _load("mnist1d-shuffled", {"shuffle_seq": True})


@task_family(
    "mnist1d",
    "mnist1d:<key=value,...>",
    "MNIST-1D with other settings, as in mnist1d:seed=7",
    host="conv1d",
    data=lambda: "generated at first use",
)
def make_mnist1d(text: str) -> Task:
    """MNIST-1D with some generator settings changed; host and optimiser stay those tuned on the published draw."""
    name, summary, load, data = _describe(parse_settings(text))
    return Task(name, summary, load, "conv1d", _CLASSES, _HOST_SETTINGS, _TUNED, data=data)


@task_family(
    "mnist1d-mlp",
    "mnist1d-mlp:<key=value,...>",
    "the same with a host that knows nothing of order",
    host="mlp",
    data=lambda: "generated at first use",
)
def make_mnist1d_mlp(text: str) -> Task:
    """The same data as `mnist1d:`, for the MLP host."""
    settings = parse_settings(text)
    name, summary, load, data = _describe(settings)
    base, colon, rest = name.partition(":")
    length = settings.get("final_seq_length", published()["final_seq_length"])
    assert isinstance(length, int)
    sizes: HostSettings = {**_MLP_SETTINGS, "inputs": length}
    return Task(f"{base}-mlp{colon}{rest}", summary, load, "mlp", _CLASSES, sizes, _MLP_TUNED, data=data)


def _describe(settings: Mapping[str, Setting]) -> tuple[str, str, Loader, Callable[[], str]]:
    """Name, summary, loader and state of the data of a generator's settings."""
    shown = canonical_settings(settings)
    name = f"mnist1d:{shown}" if settings else "mnist1d"
    name = "mnist1d-shuffled" if settings == {"shuffle_seq": True} else name
    # Names of all settings together would be too long for some file systems.
    cache_name = f"mnist1d-{hashlib.sha256(name.encode()).hexdigest()[:16]}" if ":" in name else name
    load = partial(_load, cache_name, settings)
    return name, f"MNIST-1D with {shown}", load, lambda: _data_note(cache_name)


@cache
def published() -> Mapping[str, Setting]:
    """Every argument of the generator and its published value; the address of the published file is none."""
    # The generator brings pictures and interpolation along, which most users of this package never need.
    from mnist1d.data import get_dataset_args

    return {key: value for key, value in get_dataset_args(as_dict=True).items() if key != "url"}


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
