"""The objective, written down once: quality minus rent."""

from typing import Final

DEFAULT_PRICE: Final = 0.03
"""What adding as many parameters as the host has costs, in units of quality."""


def rent(added_params: float, host_params: float, price: float) -> float:
    """What keeping `added_params` costs, relative to the size of the host."""
    return price * added_params / host_params


def objective(quality: float, added_params: float, host_params: float, price: float) -> float:
    """`quality`, in [0, 1], minus the rent of what was added."""
    return quality - rent(added_params, host_params, price)
