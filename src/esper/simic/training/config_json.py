"""Configs as JSON data and back: nested dataclasses, enums and tuples, with every mistake named by its field."""

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any, get_args, get_type_hints

from esper.leyline import InputError, unknown_name


def to_plain(value: Any) -> Any:
    """`value` as built-in types that JSON has."""
    if dataclasses.is_dataclass(value):
        return {spec.name: to_plain(getattr(value, spec.name)) for spec in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, tuple | list) else value


def from_plain(kind: Any, data: object, prefix: str = "") -> Any:
    """A dataclass of `kind` from plain data; lists become tuples, nested dictionaries nested dataclasses."""
    names = [spec.name for spec in fields(kind)]
    if not isinstance(data, Mapping):
        raise InputError(f"{prefix.rstrip('.')} must hold fields ({', '.join(names)}); got {data!r}")
    for key in data:
        if key not in names:
            raise unknown_name("config field", prefix + key, names)
    for spec in fields(kind):
        if spec.name not in data and spec.default is MISSING and spec.default_factory is MISSING:
            raise InputError(f"{prefix}{spec.name} has no default and must be given")
    hints = get_type_hints(kind)
    return kind(**{key: _value(hints[key], value, prefix + key) for key, value in data.items()})


def _value(hint: Any, value: object, name: str) -> Any:
    nested = next((option for option in get_args(hint) or (hint,) if dataclasses.is_dataclass(option)), None)
    if nested is not None and isinstance(value, Mapping):
        return from_plain(nested, value, f"{name}.")
    if nested is not None and isinstance(value, list):
        return tuple(from_plain(nested, item, f"{name}[{index}].") for index, item in enumerate(value))
    if isinstance(hint, type) and issubclass(hint, Enum) and isinstance(value, str):
        by_value = {str(member.value): member for member in hint}
        if value not in by_value:
            raise unknown_name(name, value, by_value)
        return by_value[value]
    return tuple(value) if isinstance(value, list) else value
