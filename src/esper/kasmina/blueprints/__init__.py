"""Blueprints: the kinds of seeds of each family. A new one is one decorated class in `kinds.py`."""

import esper.kasmina.blueprints.kinds  # noqa: F401  # importing registers
