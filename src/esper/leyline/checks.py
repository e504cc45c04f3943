"""Checking the fields of records when they are made."""

import math
from collections.abc import Mapping
from dataclasses import fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from esper.leyline.errors import InputError


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
