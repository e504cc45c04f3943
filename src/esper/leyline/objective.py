"""The objective, written down once: quality minus rent. Plain numbers and tensors go through the same formula."""

from typing import Any, Final, Protocol, Self, TypeVar

DEFAULT_PRICE: Final = 0.03
"""What adding as many parameters as the host has costs, in units of quality."""
PRICE_RANGE: Final = (0.01, 0.1)
"""Between these the price of a training episode is drawn, log-uniformly."""
POINTS: Final = 100.0
"""Points in a quality of 1: what people call points of accuracy."""


class Quantity(Protocol):
    """A float, or a tensor of them: whatever can be added, subtracted, multiplied and divided."""

    def __add__(self, other: Any, /) -> Self: ...
    def __sub__(self, other: Any, /) -> Self: ...
    def __mul__(self, other: Any, /) -> Self: ...
    def __truediv__(self, other: Any, /) -> Self: ...


Q = TypeVar("Q", bound=Quantity)


def charge(added: Q, host: float, price: Q | float) -> Q:
    """What `added` costs where as much as the `host` has costs the price; parameters and FLOPs alike."""
    return added * price / host


def rent(
    added_params: Q,
    host_params: float,
    price: Q,
    added_flops: Q | float = 0.0,
    host_flops: float = 1.0,
    flop_price: float = 0.0,
) -> Q:
    """What keeping what was added costs, relative to the size of the host and to the work that it does."""
    return charge(added_params, host_params, price) + charge(added_flops, host_flops, flop_price)


def objective(quality: Q, *rented: Any) -> Q:
    """`quality`, in [0, 1], minus the rent of what was added; what follows it are the arguments of `rent`."""
    owed: Q = rent(*rented)
    return quality - owed
