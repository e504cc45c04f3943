"""What the fields of a config may hold, said beside each field, and configs as JSON data and back."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from esper.leyline import InputError, unknown_name
from esper.leyline.checks import has_type

_WHOLE_NUMBER_END = 2**63


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a field may hold. Brackets say which ends belong to it: "[)" has the lower one only."""

    low: float
    high: float = math.inf
    ends: str = "[)"

    def check(self, name: str, number: float) -> None:
        """Refuse a number outside of the range, NaN and infinities included."""
        above = number >= self.low if self.ends[0] == "[" else number > self.low
        below = number <= self.high if self.ends[1] == "]" else number < self.high
        # Compared with infinity, because isfinite cannot take whole numbers beyond what a float can hold.
        if not (-math.inf < number < math.inf and above and below):
            raise InputError(f"{name} must be in {self.ends[0]}{self.low:g}, {self.high:g}{self.ends[1]}; got {number}")
        if isinstance(number, int) and abs(number) >= _WHOLE_NUMBER_END:
            raise InputError(f"{name} must fit into 64 bits; got {number}")


Count = Annotated[int, Range(1)]
Number = Annotated[int, Range(0)]
Amount = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, ends="()")]
Share = Annotated[float, Range(0, 1, "[]")]


@dataclass(frozen=True, slots=True)
class Group:
    """A group of options, checked against their annotations when it is made."""

    group: ClassVar[str] = ""
    """What the group is called in a config file and on the command line."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        plain = get_type_hints(type(self))
        for spec in fields(self):
            name, value = f"{self.group}.{spec.name}".lstrip("."), getattr(self, spec.name)
            if get_origin(plain[spec.name]) is Literal and isinstance(value, str):
                if value not in get_args(plain[spec.name]):
                    raise unknown_name(name, value, get_args(plain[spec.name]))
            elif not has_type(value, plain[spec.name]):
                raise InputError(f"{name} must be {_describe(plain[spec.name])}; got {value!r}")
            for bounds in _ranges(hints[spec.name]):
                for place, number in _numbers(name, value):
                    bounds.check(place, number)

    def to_dict(self) -> dict[str, Any]:
        """As built-in types that JSON has."""
        plain: dict[str, Any] = _to_plain(self)
        return plain

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """The inverse of `to_dict`; unknown keys are refused."""
        made: Self = _from_plain(cls, data, "")
        return made


def _ranges(hint: Any) -> Iterator[Range]:
    """The ranges in an annotation, as deep as they are."""
    for part in get_args(hint):
        if isinstance(part, Range):
            yield part
        else:
            yield from _ranges(part)


def _numbers(name: str, value: Any) -> list[tuple[str, float]]:
    """The numbers in a field, each with the name it goes by."""
    if isinstance(value, Mapping):
        return [(f"{name}.{key}", number) for key, number in value.items()]
    return [(name, number) for number in (value if isinstance(value, tuple) else (value,)) if number is not None]


def _describe(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(_describe, get_args(hint)))
    if hint is NoneType:
        return "none"
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("collections.abc.", "")


def _to_plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {spec.name: _to_plain(getattr(value, spec.name)) for spec in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    return [_to_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _from_plain(kind: Any, data: object, prefix: str) -> Any:
    """A dataclass of `kind` from plain data; lists become tuples, nested dictionaries nested dataclasses."""
    names = [spec.name for spec in fields(kind)]
    if not isinstance(data, Mapping):
        raise InputError(f"{prefix.rstrip('.')} must hold fields ({', '.join(names)}); got {data!r}")
    for key in data:
        if key not in names:
            raise unknown_name("config field", prefix + key, [prefix + name for name in names])
    for spec in fields(kind):
        if spec.name not in data and spec.default is MISSING and spec.default_factory is MISSING:
            raise InputError(f"{prefix}{spec.name} has no default and must be given")
    hints = get_type_hints(kind)
    return kind(**{key: _value(hints[key], value, prefix + key) for key, value in data.items()})


def _value(hint: Any, value: object, name: str) -> Any:
    nested = next((option for option in get_args(hint) or (hint,) if dataclasses.is_dataclass(option)), None)
    if nested is not None and isinstance(value, Mapping):
        return _from_plain(nested, value, f"{name}.")
    if nested is not None and isinstance(value, list):
        return tuple(_from_plain(nested, item, f"{name}[{index}].") for index, item in enumerate(value))
    if isinstance(hint, type) and issubclass(hint, Enum) and isinstance(value, str):
        by_value = {str(member.value): member for member in hint}
        if value not in by_value:
            raise unknown_name(name, value, by_value)
        return by_value[value]
    return tuple(value) if isinstance(value, list) else value
