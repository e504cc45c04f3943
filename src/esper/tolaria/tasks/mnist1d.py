"""MNIST-1D: ten templates, moved, stretched and drowned in noise; generated here, as published or otherwise."""

import hashlib
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from esper.leyline import InputError
from esper.tolaria.tasks.cache import Arrays, cached_arrays, is_cached
from esper.tolaria.tasks.checks import check_split
from esper.tolaria.tasks.mnist1d_settings import Setting, canonical_settings, parse_settings
from esper.tolaria.tasks.prepare import hold_out
from esper.tolaria.tasks.registry import HostSettings, Loader, OptimizerSettings, Split, Splits, Task, task, task_family

_KEYS = ("x", "y", "x_test", "y_test")
_CLASSES = 10
_VAL_SHARE, _VAL_MOST = 0.2, 1024
_SHORTEST = 8
_HOST_SETTINGS: HostSettings = {"channels": (5, 10, 20)}
_MLP_SETTINGS: HostSettings = {"inputs": 40, "widths": (16, 16, 16)}
_TUNED = OptimizerSettings("adamw", lr=6e-2, schedule="wsd")
_MLP_TUNED = OptimizerSettings("adamw", lr=2e-2, schedule="wsd")
"""Best of the host alone on validation (docs/growth.md)."""


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
    if int(_VAL_SHARE * len(arrays["y"])) < 1:
        raise ValueError(f"{len(arrays['y'])} series are too few to hold some out")


def _load(cache_name: str, settings: Mapping[str, Setting]) -> Splits:
    arrays = cached_arrays(cache_name, _KEYS, lambda: _generate(settings), _check)
    data = {name: torch.from_numpy(array) for name, array in arrays.items()}
    val_samples = min(_VAL_MOST, int(_VAL_SHARE * len(data["y"])))
    train, val = hold_out(Split(data["x"], data["y"]), val_samples)
    return Splits(train, val, Split(data["x_test"], data["y_test"]))


def _data_note(cache_name: str) -> str:
    return "generated, here" if is_cached(cache_name) else "generated at first use, 5 seconds"


def _register(name: str, summary: str) -> Callable[[Loader], Loader]:
    """Two tasks with the same data: `name` has a host of convolutions, `name-mlp` one that knows nothing of order."""

    def register(load: Loader) -> Loader:
        for suffix, host, settings, optimizer in (
            ("", "conv1d", _HOST_SETTINGS, _TUNED),
            ("-mlp", "mlp", _MLP_SETTINGS, _MLP_TUNED),
        ):
            task(
                name + suffix,
                summary,
                host=host,
                classes=_CLASSES,
                optimizer=optimizer,
                host_settings=settings,
                data=lambda: _data_note(name),
            )(load)
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
    settings = parse_settings(text)
    if not settings:
        name = "mnist1d"
    elif settings == {"shuffle_seq": True}:
        name = "mnist1d-shuffled"
    else:
        name = f"mnist1d:{canonical_settings(settings)}"
    # Names of all settings together would be too long for some file systems.
    cache_name = f"mnist1d-{hashlib.sha256(name.encode()).hexdigest()[:16]}" if ":" in name else name
    return Task(
        name,
        f"MNIST-1D with {canonical_settings(settings)}",
        partial(_load, cache_name, settings),
        "conv1d",
        _CLASSES,
        _HOST_SETTINGS,
        _TUNED,
        data=lambda: _data_note(cache_name),
    )
