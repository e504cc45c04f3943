"""Controllers by name."""

from collections.abc import Callable

from esper.leyline import Blend, unknown_name
from esper.tamiyo.heuristic import Heuristic
from esper.tamiyo.rule import Rule
from esper.tamiyo.simple import Controller, Never, Planting, Random, Schedule

DEFAULT_SCHEDULE = (Planting(0, 3, 6, Blend.INSTANT),)
"""The best single open-loop schedule found on the training tasks (docs/growth.md)."""

_MAKERS: dict[str, Callable[[], Controller]] = {
    "never": Never,
    "random": Random,
    "schedule": lambda: Schedule(DEFAULT_SCHEDULE),
    "heuristic": Heuristic,
    "rule": Rule,
}


def controller_names() -> list[str]:
    return list(_MAKERS)


def make_controller(name: str) -> Controller:
    """A fresh controller of the kind `name`."""
    if name not in _MAKERS:
        raise unknown_name("controller", name, controller_names())
    return _MAKERS[name]()
