"""Blueprints: the kinds of seeds of each family. A new one is one decorated class in `kinds.py`."""

import esper.kasmina.blueprints.kinds  # noqa: F401  # importing registers
from esper.kasmina.blueprints.registry import (
    Blueprint,
    Cost,
    blueprint,
    blueprints_of,
    catalogue_names,
    check_catalogue,
    find_blueprint,
    num_blueprints,
)

__all__ = [
    "Blueprint",
    "Cost",
    "blueprint",
    "blueprints_of",
    "catalogue_names",
    "check_catalogue",
    "find_blueprint",
    "num_blueprints",
]
