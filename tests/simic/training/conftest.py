"""A run that many tests read."""

from pathlib import Path

import pytest

import esper
from tests.simic.training.runs import tiny_config


@pytest.fixture(scope="package")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run, to be read only."""
    out = tmp_path_factory.mktemp("runs") / "straight"
    esper.train(tiny_config(), out)
    return out
