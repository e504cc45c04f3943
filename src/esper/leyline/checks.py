"""The few kinds of fault that callers may want to tell apart, and checks of records when they are made."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


class EsperError(Exception):
    """Base of every error that Esper raises on purpose."""


class InputError(EsperError, ValueError):
    """Something given from outside cannot be used; the message names it and what is allowed."""


class DamagedFileError(InputError):
    """A file is cut short, altered, or not what it should be; nothing was changed by reading it."""


class OtherCatalogueError(InputError):
    """A file was made with other blueprints than are registered here; nothing was changed by reading it."""


class IllegalActionError(EsperError, ValueError):
    """An action or transition is not legal in the present state; the state is unchanged."""


class InvalidStateMachineError(EsperError, RuntimeError):
    """A mask leaves no valid action, so the state machine that made it is broken."""


class WorkerError(EsperError, RuntimeError):
    """A worker is lost and could not be replaced, or what was lost with it cannot be made again."""


class TrainingFailedError(EsperError, RuntimeError):
    """Training keeps failing although it was taken back to its last good epoch each time."""


def unknown_name(kind: str, given: object, allowed: Iterable[str]) -> InputError:
    """The one sentence for a name that does not exist: what was given and what may be given."""
    return InputError(f"unknown {kind} {given!r}; choose one of: {', '.join(allowed)}")


def has_type(value: object, hint: Any) -> bool:
    """Whether `value` is what the annotation `hint` says, down to the items of tuples and mappings."""
    if hint is Any:
        return True
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(has_type(value, option) for option in get_args(hint))
    if origin is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if origin is tuple:
        kinds = get_args(hint)
        if not isinstance(value, tuple) or (Ellipsis not in kinds and len(value) != len(kinds)):
            return False
        return all(has_type(item, kinds[0]) for item in value)
    if origin is Mapping:
        key, item = get_args(hint)
        return isinstance(value, Mapping) and all(has_type(k, key) and has_type(v, item) for k, v in value.items())
    if hint in (int, float):  # a bool is an int to Python, but never meant as a number here
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


def check_field_types(record: Any) -> None:
    """Refuse a dataclass instance with a field whose value is not of its annotated type, and name the field."""
    hints = get_type_hints(type(record))
    for spec in fields(record):
        value = getattr(record, spec.name)
        if not has_type(value, hints[spec.name]):
            raise InputError(f"{type(record).__name__}.{spec.name} must be {spec.type}; got {value!r}")


def check_amounts(record: Any) -> None:
    """Refuse a dataclass instance with a number, alone or in a tuple, that is negative, infinite or NaN."""
    for spec in fields(record):
        value = getattr(record, spec.name)
        for number in value if isinstance(value, tuple) else (value,):
            # Not isfinite, which cannot take whole numbers beyond what a float can hold.
            if isinstance(number, int | float) and not 0 <= number < math.inf:
                raise InputError(f"{type(record).__name__}.{spec.name} must be finite and 0 or more; got {number}")
