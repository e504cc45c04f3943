"""The objective, written down once: quality minus rent. Plain numbers and tensors go through the same formula."""

from typing import Any, Final, Protocol, Self, TypeVar

DEFAULT_PRICE: Final = 0.03
"""What adding as many parameters as the host has costs, in units of quality."""
PRICE_RANGE: Final = (0.01, 0.1)
"""Between these the price of a training episode is drawn, log-uniformly."""
POINTS: Final = 100.0
"""Points in a quality of 1: what people call points of accuracy."""


class Quantity(Protocol):
    """A float, or a tensor of them: whatever can be subtracted, multiplied and divided."""

    def __sub__(self, other: Any, /) -> Self: ...
    def __mul__(self, other: Any, /) -> Self: ...
    def __truediv__(self, other: Any, /) -> Self: ...


Q = TypeVar("Q", bound=Quantity)


def rent(added_params: Q, host_params: float, price: Q) -> Q:
    """What keeping `added_params` costs, relative to the size of the host."""
    return price * added_params / host_params


def objective(quality: Q, added_params: Q, host_params: float, price: Q) -> Q:
    """`quality`, in [0, 1], minus the rent of what was added."""
    return quality - rent(added_params, host_params, price)
