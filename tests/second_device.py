"""A second device for machines that have none: it computes on the CPU, goes by another name, and refuses to mix.

Inside `with SecondDevice():`, `SECOND` is a device like any other: for factories, `.to`, modules, optimisers. Its
tensors follow the rules of CUDA tensors, so what runs here leaves no CPU tensor where CUDA would refuse it:

- an operation takes tensors of one device; only copies cross from one to the other,
- a pointwise operation also takes CPU tensors without dimensions, as the numbers they are,
- a tensor of the device may be indexed by CPU tensors, but not the other way round,
- random numbers of the device come from a generator of its own.

What crosses is counted, because a read makes the CPU wait for a device.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

SECOND = torch.device("lazy", 0)
"""A name that torch knows and nothing implements; backward passes of such tensors run in the caller's thread."""

_aten = torch.ops.aten
_COPIES = {_aten._to_copy.default, _aten.copy_.default, _aten._foreach_copy_.default}
_INDEXING = {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_}


class SecondTensor(Tensor):
    """A tensor that says it is on `SECOND`; its numbers are in a CPU tensor inside."""

    inside: Tensor

    @staticmethod
    def __new__(cls, inside: Tensor) -> "SecondTensor":
        made: SecondTensor = Tensor._make_wrapper_subclass(
            cls,
            inside.shape,
            strides=inside.stride(),
            storage_offset=inside.storage_offset(),
            dtype=inside.dtype,
            device=SECOND,
        )
        made.inside = inside
        return made

    # With the next two, a module that is moved here keeps its parameters, as it does on its way to CUDA.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inside"], None

    @staticmethod
    def __tensor_unflatten__(parts: Mapping[str, Tensor], *_: Any) -> "SecondTensor":
        return SecondTensor(parts["inside"])

    def __repr__(self) -> str:  # type: ignore[override]
        return f"SecondTensor({self.inside!r})"

    def tolist(self) -> Any:
        """The numbers; torch's own way does not work for subclasses."""
        return self.cpu().tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saved, it is a tensor that loads onto the CPU, as CUDA tensors do with that `map_location`."""
        return self.inside.__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own declaration lacks `func`
        cls, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _compute(func, args, kwargs or {})


class SecondDevice:
    """While entered, tensors can be made on `SECOND` and moved there."""

    def __init__(self) -> None:
        self._dispatch = _Dispatch()
        self._entered = ExitStack()

    @property
    def reads(self) -> int:
        """How often numbers came from the device to the CPU."""
        return self._dispatch.reads

    @property
    def writes(self) -> int:
        """How often numbers went from the CPU to the device."""
        return self._dispatch.writes

    def get_rng_state(self, device: torch.device = SECOND) -> Tensor:
        """The state of the device's own generator."""
        return self._dispatch.dice

    def set_rng_state(self, state: Tensor, device: torch.device = SECOND) -> None:
        """The inverse of `get_rng_state`."""
        self._dispatch.dice = state

    def __enter__(self) -> "SecondDevice":
        # Its LSTM fails under any dispatch mode; the plain one computes the same on both devices.
        self._entered.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        torch._C._set_mkldnn_enabled(False)
        self._entered.enter_context(_MadeFromData())
        self._entered.enter_context(self._dispatch)
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.close()


class _Dispatch(TorchDispatchMode):
    """Sees every operation, whatever it is on."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # there is none, and looking for it takes longer than most operations

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reads = 0
        self.writes = 0
        self.dice = torch.Generator().manual_seed(42).get_state()

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not types and "device" not in kwargs and func.overloadpacket is not _aten.to:
            with _views_stay_ordinary(func, args):
                return func(*args, **kwargs)  # nothing but the CPU takes part
        if _is_composite(func):
            with self, torch._C.DisableTorchFunction():
                return func.decompose(*args, **kwargs)
        draws = torch.Tag.nondeterministic_seeded in func.tags and _runs_there(args, kwargs)
        result = self._draw(func, args, kwargs) if draws else _compute(func, args, kwargs)
        self._count(func, args, result)
        return result

    def _draw(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        outside = torch.get_rng_state()
        torch.set_rng_state(self.dice)
        try:
            return _compute(func, args, kwargs)
        finally:
            self.dice = torch.get_rng_state()
            torch.set_rng_state(outside)

    def _count(self, func: OpOverload, args: tuple[Any, ...], result: Any) -> None:
        if func is _aten._local_scalar_dense.default:
            self.reads += _is_second(args[0])
        elif func in _COPIES:
            sources, results = (args[0], result) if func is _aten._to_copy.default else (args[1], args[0])
            for before, after in zip(_leaves([sources]), _leaves([results]), strict=True):
                self.reads += _is_second(before) and not _is_second(after)
                self.writes += _is_second(after) and not _is_second(before)


class _MadeFromData(TorchFunctionMode):
    """Makes tensors of Python numbers, also of lists in an index, on the CPU and then moves them.

    Torch shows that move to no dispatch mode.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (Tensor.__getitem__, Tensor.__setitem__) and _is_second(args[0]):
            index = tuple(map(_index, args[1])) if isinstance(args[1], tuple) else _index(args[1])
            args = (args[0], index, *args[2:])
        if func not in (torch.tensor, torch.as_tensor, Tensor.new_tensor):
            return func(*args, **kwargs)
        default = args[0].device if func is Tensor.new_tensor else "cpu"
        device = torch.device(kwargs.pop("device", None) or default)
        return func(*args, **kwargs, device="cpu").to(device)


def _index(part: Any) -> Any:
    return torch.tensor(part, dtype=torch.long) if isinstance(part, list) else part


def _is_second(value: Any) -> bool:
    return isinstance(value, SecondTensor)


@cache
def _is_composite(func: OpOverload) -> bool:
    """Whether it is made of others; under inference mode torch shows such an operation whole, moves inside included."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), torch._C.DispatchKey.CompositeImplicitAutograd)


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    """Operations take lists at most one level deep."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    return type(value)(map(change, value)) if isinstance(value, list | tuple) else change(value)


def _inside(value: Any) -> Any:
    return value.inside if _is_second(value) else value


def _views_stay_ordinary(func: OpOverload, args: tuple[Any, ...]) -> AbstractContextManager[object]:
    """Views of ordinary tensors are ordinary ones, also under inference mode, where all else is an inference tensor."""
    if not torch.is_inference_mode_enabled() or not func.is_view or args[0].is_inference():
        return nullcontext()
    stack = ExitStack()
    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.no_grad())
    return stack


def _runs_there(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the results of an operation are on the second device."""
    if (device := kwargs.get("device")) is not None:
        return torch.device(device).type == SECOND.type
    return any(map(_is_second, _leaves((*args, *kwargs.values()))))


def _compute(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run `func` on the CPU, if its tensors agree on where they are; the results are there too, or on its `device`."""
    tensors = [leaf for leaf in _leaves((*args, *kwargs.values())) if isinstance(leaf, Tensor)]
    if func not in _COPIES:
        _require_one_device(func, args, tensors)
    second = _runs_there(args, kwargs)
    inner_kwargs = {name: _mapped(_inside, value) for name, value in kwargs.items()}
    if second and "device" in kwargs:
        inner_kwargs["device"] = torch.device("cpu")
    given = {id(tensor.inside): tensor for tensor in tensors if isinstance(tensor, SecondTensor)}

    def outside(result: Any) -> Any:
        if not second or not isinstance(result, Tensor):
            return result
        # What is changed in place stays the object that it was.
        return given[id(result)] if id(result) in given else SecondTensor(result)

    with _views_stay_ordinary(func, args):
        return _mapped(outside, func(*(_mapped(_inside, value) for value in args), **inner_kwargs))


def _require_one_device(func: OpOverload, args: tuple[Any, ...], tensors: list[Tensor]) -> None:
    strangers = [tensor for tensor in tensors if not _is_second(tensor)]
    if len(strangers) in (0, len(tensors)):
        return
    if func.overloadpacket in _INDEXING and _is_second(args[0]):
        indices = {id(index) for index in args[1]}
        strangers = [tensor for tensor in strangers if tensor.ndim and id(tensor) not in indices]
    elif torch.Tag.pointwise in func.tags and (_is_second(args[0]) or not func._schema.is_mutable):
        strangers = [tensor for tensor in strangers if tensor.ndim]
    if strangers:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {func} got some on {SECOND} and some on the CPU"
        )
