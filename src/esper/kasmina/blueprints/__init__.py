"""Blueprints: the kinds of seeds of each family. A new one is one decorated class in one of these files."""

import esper.kasmina.blueprints.conv
import esper.kasmina.blueprints.features

import esper.kasmina.blueprints.branches  # noqa: F401  # isort: skip  # importing registers; ids have no gaps
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
