"""Cli: the `esper` command."""

from esper.cli.main import main

__all__ = ["main"]
