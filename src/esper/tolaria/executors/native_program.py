"""From modules to programs: one watched forward pass writes down the operations, and a program puts them in a row.

`record` turns a module into lines of a program that know their places relative to what the module is given and to a
piece of memory of its own. `Builder` joins those of the parts of a host, of its seeds and of copies of what lies behind
a slot, and so gives each value its rows in the memory of a pass.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from esper.leyline import InputError
from esper.tolaria.executors.native_kernels import Code, Field

_VIEWS = ("flatten", "unsqueeze", "contiguous", "reshape", "view")
"""They keep the order of a sample's numbers, so rows stay where they are."""
_PLACES = slice(Field.SRC, Field.OTHER + 1)
_PARAMETERS = slice(Field.WEIGHT, Field.BIAS + 1)
_REST = [0] * (len(Field) - Field.KERNEL - 1)
_NO_PLACES, _NO_PARAMETERS = np.zeros((1, 3), np.int64), np.zeros((1, 2), np.int64)
_EPS = 1e-5
"""The epsilon of normalisations that the kernels use: torch's default."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of a pass, without its batch axis: the row with which it begins, and its shape."""

    row: int
    shape: tuple[int, ...]
    given: bool = False
    """In a recording: whether the row is counted from the beginning of what the module is given."""

    @property
    def channels(self) -> int:
        return self.shape[0]

    @property
    def length(self) -> int:
        """How many positions each channel has."""
        return prod(self.shape[1:])

    @property
    def rows(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Recording:
    """A module as lines of a program."""

    lines: tuple[NDArray[np.int64], ...]
    """Four times: with or without a gradient for what is given, then both again with parameters that learn."""
    given: NDArray[np.int64]
    """`[lines, 3]`, 0 or 1: which of the places SRC, DST and OTHER are counted from what the module is given."""
    owned: NDArray[np.int64]
    """`[lines, 2]`, 0 or 1: whether there are a WEIGHT and a BIAS."""
    rows: int
    """Of the module's own memory."""
    result: Value
    spare: int
    """Numbers that an operation needs for itself, per sample; and `spare_fixed` in any case."""
    spare_fixed: int


class _Recorder(TorchFunctionMode):
    """Writes down every operation on tensors that came from the input."""

    def __init__(self, module: nn.Module, example: Tensor) -> None:
        super().__init__()
        self.lines: list[NDArray[np.int64]] = []
        self.given: list[list[bool]] = []
        self.rows, self.spare, self.spare_fixed = 0, 3, 0
        self._offsets: dict[int, int] = {}
        offset = 0
        for parameter in module.parameters():
            self._offsets[id(parameter)] = offset
            offset += parameter.numel()
        self._values = {id(example): Value(0, tuple(example.shape[1:]), given=True)}
        self._alive: list[Tensor] = [example]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        made = result if isinstance(result, tuple | list) else (result,)
        read = [self._values[id(item)] for item in args if isinstance(item, Tensor) and id(item) in self._values]
        if read and all(isinstance(item, Tensor) for item in made):
            self._write_down(func.__name__, read, args, kwargs or {}, made)
        return result

    def find(self, tensor: Tensor) -> Value:
        """Where a tensor of the pass is."""
        return self._values[id(tensor)]

    def _write_down(
        self, name: str, read: list[Value], args: tuple[Any, ...], kwargs: dict[str, Any], made: Sequence[Tensor]
    ) -> None:
        given, shape = read[0], tuple(made[0].shape[1:])
        if name in _VIEWS:
            self._name(made[0], replace(given, shape=shape))
        elif name == "chunk" and len(given.shape) == 1:
            for number, part in enumerate(made):
                self._name(part, replace(given, shape=tuple(part.shape[1:]), row=given.row + number * shape[0]))
        elif name in _HANDLERS:
            dst = self._new(shape)
            _HANDLERS[name](self, given, dst, read, args, kwargs)
            self._name(made[0], dst)
        else:
            raise InputError(f"the executor 'native' does not know the operation {name!r}; use 'stacked' or 'loop'")

    def _name(self, tensor: Tensor, value: Value) -> None:
        self._values[id(tensor)] = value
        self._alive.append(tensor)  # or another tensor could be given its id

    def _new(self, shape: tuple[int, ...]) -> Value:
        value = Value(self.rows, shape)
        self.rows += value.rows
        return value

    def _offset(self, parameter: Tensor | None) -> int:
        return -1 if parameter is None else self._offsets[id(parameter)]

    def _line(self, code: Code, src: Value, dst: Value, other: Value | None = None, **fields: int) -> None:
        self.lines.append(line_of(code, src, dst, other, **fields))
        self.given.append([src.given, dst.given, other is not None and other.given])

    def _linear(self, src: Value, dst: Value, _: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        weight, bias = args[1], args[2] if len(args) > 2 else kwargs.get("bias")
        _require(len(src.shape) == 1 or (len(src.shape) == 2 and bias is not None), "such a linear layer")
        code = Code.LINEAR if len(src.shape) == 1 else Code.POSITIONS
        self._line(code, src, dst, weight=self._offset(weight), bias=self._offset(bias))
        self.spare = max(self.spare, src.rows)
        self.spare_fixed = max(self.spare_fixed, src.length * dst.length)

    def _conv1d(self, src: Value, dst: Value, _: Any, args: tuple[Any, ...], __: Any) -> None:
        weight, bias, (stride,), (padding,), dilation, groups = args[1:]
        depthwise = groups == src.channels == dst.channels and bias is None
        _require(tuple(dilation) == (1,) and (groups == 1 or depthwise), "such a convolution")
        kernel = weight.shape[2]
        given = {"weight": self._offset(weight), "bias": self._offset(bias), "kernel": kernel}
        if groups > 1:
            self._line(Code.DEPTHWISE, src, dst, **given, stride=stride, padding=padding)
            return
        windows = src.channels * kernel * dst.length
        self.spare = max(self.spare, windows)
        if (kernel, stride, padding) == (1, 1, 0):
            self._line(Code.LINEAR, src, dst, **given)
        else:
            self._line(Code.CONV, src, dst, self._new((windows,)), **given, stride=stride, padding=padding)

    def _norm(self, src: Value, dst: Value, _: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """`layer_norm` of features and `group_norm` of one group, whose second argument says over what."""
        over, weight, bias, eps = (*args[1:], *(kwargs[name] for name in ("weight", "bias", "eps") if name in kwargs))
        whole = over == 1 or (not isinstance(over, int) and tuple(over) == src.shape)
        plain = weight is not None and bias is not None and eps == _EPS
        _require(whole and plain, "a normalisation over a part of the sample, without weights, or of another epsilon")
        places = {"weight": self._offset(weight), "bias": self._offset(bias)}
        self._line(Code.NORM, src, dst, self._new((src.rows + 2,)), **places)

    def _mul(self, src: Value, dst: Value, read: list[Value], args: tuple[Any, ...], _: Any) -> None:
        if len(read) == 2:
            self._line(Code.MUL, src, dst, read[1])
            return
        factor = next((item for item in args if isinstance(item, Tensor) and id(item) in self._offsets), None)
        shape = (src.channels, *[1] * (len(src.shape) - 1))
        _require(factor is not None and tuple(factor.shape) == shape, "a product with something else than a scale")
        self._line(Code.SCALE, src, dst, weight=self._offset(factor))

    def _mean(self, src: Value, dst: Value, _: Any, __: Any, ___: Any) -> None:
        _require(dst.shape == src.shape[:1], "a mean over something else than positions")
        self._line(Code.MEAN, src, dst)

    def _relu(self, src: Value, dst: Value, _: Any, __: Any, ___: Any) -> None:
        self._line(Code.RELU, src, dst)

    def _silu(self, src: Value, dst: Value, _: Any, __: Any, ___: Any) -> None:
        self._line(Code.SILU, src, dst)


_HANDLERS: dict[str, Callable[..., None]] = {
    "linear": _Recorder._linear,
    "conv1d": _Recorder._conv1d,
    "layer_norm": _Recorder._norm,
    "group_norm": _Recorder._norm,
    "mul": _Recorder._mul,
    "__mul__": _Recorder._mul,
    "__rmul__": _Recorder._mul,
    "mean": _Recorder._mean,
    "relu": _Recorder._relu,
    "silu": _Recorder._silu,
}


def _require(known: bool, what: str) -> None:
    if not known:
        raise InputError(f"the executor 'native' does not know {what}; use 'stacked' or 'loop'")


def record(module: nn.Module, shape: Sequence[int]) -> Recording:
    """The instructions of `module` for samples of this shape; an `InputError` if it does something else."""
    parameter = next(module.parameters(), None)
    example = torch.zeros(2, *shape, dtype=torch.float32 if parameter is None else parameter.dtype)
    with torch.no_grad(), _Recorder(module, example) as recorder:
        result = module(example)
    lines = np.array(recorder.lines, np.int64).reshape(-1, len(Field))
    given = np.array(recorder.given, np.int64).reshape(-1, 3)
    owned = (lines[:, _PARAMETERS] >= 0).astype(np.int64)
    variants = []
    for learns, sends in product((0, 1), repeat=2):
        variant = lines.copy()
        # What is inside of the module always gets its gradient, what it was given only if asked for.
        variant[:, Field.LEARNS] = learns
        variant[:, Field.SENDS] = 3 if sends else (1 - given[:, 0]) + 2 * (1 - given[:, 2])
        variants.append(variant)
    found = recorder.find(result)
    return Recording(tuple(variants), given, owned, recorder.rows, found, recorder.spare, recorder.spare_fixed)


def line_of(code: Code, src: Value, dst: Value, other: Value | None = None, **fields: int) -> NDArray[np.int64]:
    """One line of a program; what is not named is 0, and parameters that are not there are -1."""
    line = [
        int(code), src.row, dst.row, -1 if other is None else other.row, -1, -1,
        src.channels, src.length, dst.channels, dst.length, 1, *_REST,
    ]  # fmt: skip
    for name, number in fields.items():
        line[Field[name.upper()]] = number
    return np.array(line, np.int64)


@dataclass(frozen=True, slots=True)
class Program:
    """What the kernels run."""

    table: NDArray[np.int64]
    consts: NDArray[Any]
    rows: int
    """Of the memory of a pass."""
    spare: int
    """Numbers that an operation needs for itself, per sample; and `spare_fixed` in any case."""
    spare_fixed: int


@dataclass(slots=True)
class Builder:
    """Puts modules in a row. The pass begins with its input, a value of shape `sample`."""

    sample: tuple[int, ...]
    dtype: torch.dtype
    tables: list[NDArray[np.int64]] = field(default_factory=list)
    consts: list[NDArray[Any]] = field(default_factory=list)
    _given: list[NDArray[np.int64]] = field(default_factory=list)
    _owned: list[NDArray[np.int64]] = field(default_factory=list)
    _starts: list[tuple[int, int, int]] = field(default_factory=list)
    rows: int = 0
    spare: int = 3
    spare_fixed: int = 0

    def __post_init__(self) -> None:
        self.rows = prod(self.sample)

    @property
    def input(self) -> Value:
        return Value(0, self.sample)

    def new(self, shape: tuple[int, ...]) -> Value:
        """A value that is yet to be computed."""
        value = Value(self.rows, shape)
        self.rows += value.rows
        return value

    def learns(self, value: Value) -> bool:
        """Whether anything that can learn comes before a value."""
        return value.row >= prod(self.sample)

    def add(self, recording: Recording, src: Value, parameters: int, *, learns: bool, sends: bool) -> Value:
        """Run a module on `src`; its parameters begin at `parameters`. Returns what it returns."""
        first = self.rows
        self._put(recording.lines[2 * learns + sends], recording.given, recording.owned, (first, src.row, parameters))
        self.rows += recording.rows
        self.spare, self.spare_fixed = max(self.spare, recording.spare), max(self.spare_fixed, recording.spare_fixed)
        result = recording.result
        return Value(result.row + (src.row if result.given else first), result.shape)

    def join(self, h: Value, delta: Value, alpha: int, *, sends: bool) -> Value:
        """`h` plus alpha number `alpha` times `delta`, which always learns of it."""
        delta, dst = self.fit(delta, h), self.new(h.shape)
        self._put_line(Code.ADD, h, dst, delta, alpha=alpha, sends=2 + sends)
        return dst

    def fit(self, delta: Value, h: Value) -> Value:
        """`delta` with as many positions as `h`, as `fit_positions` has it."""
        if delta.length == h.length:
            return delta
        dst = self.new((delta.channels, h.length))
        place = sum(const.size for const in self.consts)
        self.consts.append(_fitting(delta.length, h.length, self.dtype))
        self.spare = max(self.spare, delta.length)
        self._put_line(Code.FIT, delta, dst, weight=place, sends=1)
        return dst

    def take(self, delta: Value, h: Value) -> None:
        """Let `delta` receive backward what arrives at `h`, without adding it."""
        self._put_line(Code.TAKE, self.fit(delta, h), h, sends=1)

    def end(self, logits: Value, place: int) -> None:
        """The loss of `logits`, as result number `place`."""
        self._put_line(Code.LOSS, logits, logits, alpha=place)

    def _put_line(self, code: Code, src: Value, dst: Value, other: Value | None = None, **fields: int) -> None:
        self._put(line_of(code, src, dst, other, **fields)[None], _NO_PLACES, _NO_PARAMETERS, (0, 0, 0))

    def _put(
        self,
        lines: NDArray[np.int64],
        given: NDArray[np.int64],
        owned: NDArray[np.int64],
        starts: tuple[int, int, int],
    ) -> None:
        """Lines counted from these starts: of the module's memory, of what it is given, of its parameters."""
        self.tables.append(lines)
        self._given.append(given)
        self._owned.append(owned)
        self._starts.append(starts)

    def build(self) -> Program:
        """The program so far."""
        table, given, owned = map(np.concatenate, (self.tables, self._given, self._owned))
        first, source, parameters = np.repeat(self._starts, [len(lines) for lines in self.tables], 0).T[:, :, None]
        table[:, _PLACES] += first + (source - first) * given
        table[:, _PARAMETERS] += parameters * owned
        consts = np.concatenate([torch.empty(0, dtype=self.dtype).numpy(), *self.consts])
        return Program(table, consts, self.rows, self.spare, self.spare_fixed)


@cache
def _fitting(have: int, want: int, dtype: torch.dtype) -> NDArray[Any]:
    """The matrix `[want, have]` of `fit_positions`, row by row: means of positions, or repetition."""
    identity = torch.eye(have, dtype=torch.float64)[None]
    fitted = F.adaptive_avg_pool1d(identity, want) if want < have else F.interpolate(identity, want, mode="nearest")
    matrix: NDArray[Any] = fitted[0].T.to(dtype).contiguous().flatten().numpy()
    return matrix
