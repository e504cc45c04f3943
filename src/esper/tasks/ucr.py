"""Series of the UCR and UEA archives, as far as the package `aeon` carries them; nothing is downloaded.

The files are read here, because importing aeon takes seconds and needs a compiler of its own.
Hosts are plausible, not tuned; the optimiser is the best of OSULeaf's host alone (docs/growth.md).
"""

import importlib.util
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from esper.leyline import DamagedFileError, InputError, unknown_name
from esper.tasks.files import damaged
from esper.tasks.registry import OptimizerSettings, Split, Splits, Task, hold_out, standardise, task_family

_SHORTEST = 8
_MOST = 1000
"""Classes, and channels of a series, beyond which a file is not what it says."""
_INSTALL = "pip install 'esper[ucr]'"


def _folder() -> Path | None:
    """Where an installed aeon keeps its series."""
    spec = importlib.util.find_spec("aeon")
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) / "datasets" / "data" if places else None


@dataclass(frozen=True, slots=True)
class _Header:
    classes: tuple[str, ...]
    channels: int


def _read_header(path: Path) -> _Header | None:
    """What a `.ts` file says of itself; nothing if its series differ in length or have no classes.

    The channels are counted in the first series, because few files announce them.
    """
    fields: dict[str, list[str]] = {}
    first = ""
    for line in _read_lines(path):
        if line.startswith("@"):
            key, *values = line[1:].split() or [""]
            fields[key.lower()] = values
        elif line.strip() and "data" in fields:
            first = line
            break
    labelled, *classes = fields.get("classlabel") or ["false"]
    equal = fields.get("equallength") or ["true"]
    channels = first.count(":")
    if labelled.lower() != "true" or equal[0].lower() != "true":
        return None
    if not 2 <= len(set(classes)) <= _MOST or len(set(classes)) < len(classes) or not 1 <= channels <= _MOST:
        return None
    return _Header(tuple(classes), channels)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise damaged(path, str(error)) from None


def _complete(folder: Path) -> dict[str, Path]:
    """The training files of the sets that have a test file too, by name."""
    found = {path.name.removesuffix("_TRAIN.ts"): path for path in sorted(folder.glob("*/*_TRAIN.ts"))}
    return {name: path for name, path in found.items() if path.is_file() and _test_file(path).is_file()}


def _is_usable(path: Path) -> bool:
    """Whether a host can learn the set; one that is damaged is no reason not to offer the others."""
    try:
        return _read_header(path) is not None
    except DamagedFileError:
        return False


def _test_file(train: Path) -> Path:
    return train.with_name(train.name.replace("_TRAIN.ts", "_TEST.ts"))


def read_series(path: Path, header: _Header) -> Split:
    """Series `[M, C, L]` and the places of their labels among the header's classes."""
    lines = _read_lines(path)
    start = next((at for at, line in enumerate(lines) if line.strip().lower() == "@data"), len(lines))
    rows = [line.strip().split(":") for line in lines[start + 1 :] if line.strip()]
    try:
        x = torch.tensor([[[float(value) for value in part.split(",")] for part in row[:-1]] for row in rows])
        y = torch.tensor([header.classes.index(row[-1]) for row in rows])
    except ValueError as error:
        raise damaged(path, str(error)) from None
    if x.ndim != 3 or x.shape[1] != header.channels:
        raise damaged(path, f"its values are of shape {tuple(x.shape)}, with {header.channels} channels announced")
    if not x.isfinite().all():
        count = int((~x.flatten(1).isfinite().all(1)).sum())
        raise damaged(path, f"{count} of its series hold NaN or infinity")
    return Split(x, y)


def _load(train: Path, header: _Header) -> Splits:
    samples, test = read_series(train, header), read_series(_test_file(train), header)
    if samples.x.shape[2] < _SHORTEST or len(samples) < 2:
        raise damaged(train, f"{len(samples)} series of {samples.x.shape[2]} values are too few or too short")
    if samples.x.shape[2] != test.x.shape[2]:
        lengths = f"{test.x.shape[2]} values, and those of {train.name} of {samples.x.shape[2]}"
        raise damaged(_test_file(train), f"its series are of {lengths}")
    kept, val = hold_out(samples)
    return standardise(Splits(kept, val, test))


def _state() -> str:
    return "in the package aeon, here" if _folder() else f"missing: {_INSTALL}"


@task_family("ucr", "ucr:<name>", "a series of the UCR archive, as in ucr:GunPoint", host="conv1d", data=_state)
def make_ucr(name: str) -> Task:
    """The set `name` with its official test split; the training split gives a fifth for validation."""
    folder = _folder()
    if folder is None:
        raise InputError(f"the series of task 'ucr:{name}' are part of the package aeon; get it with: {_INSTALL}")
    complete = _complete(folder)
    header = _read_header(complete[name]) if name in complete else None
    if header is None:
        raise unknown_name("UCR set", name, [other for other, path in complete.items() if _is_usable(path)])
    return Task(
        f"ucr:{name}",
        f"{name} of the UCR archive",
        partial(_load, complete[name], header),
        "conv1d",
        len(header.classes),
        {"inputs": header.channels, "channels": (8, 16, 32), "classes": len(header.classes)},
        OptimizerSettings("adamw", lr=2e-2, schedule="wsd"),
        batch_size=16,
        data=_state,
    )
