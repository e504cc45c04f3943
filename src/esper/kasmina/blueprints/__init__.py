"""Blueprints: the kinds of seeds. A new one is one decorated class in one of these files."""

import esper.kasmina.blueprints.branches
import esper.kasmina.blueprints.conv
import esper.kasmina.blueprints.features  # noqa: F401  # importing registers
from esper.kasmina.blueprints.registry import Blueprint, Cost, blueprint, blueprints_of, find_blueprint

__all__ = ["Blueprint", "Cost", "blueprint", "blueprints_of", "find_blueprint"]
